/* Plays libnvidia-ml.so.1 for tests: the calls that the agent makes, answered from a script (file named by NVML_SCRIPT), acts logged to
 * NVML_LOG. The script is read again at every entry point, so that a test can change the hardware under a running agent; what the agent set
 * itself (clock locks, power limits, MIG instances and mode) stands on top of it until the epoch changes.
 *
 *   init <code>            what nvmlInit answers          driver <text>   cuda <number>   epoch <number>: a new one drops all that was set
 *   gpu <index> <key> <value>      keys: uuid pci name serial temp mig limit min max default persistence numa mps idle reasons reset_for_mig
 *   error <index> <call> <code>    that call on that GPU fails
 *   hold <gpu> <gi> <processes>    they run on that instance: it is in use; 0 is a client that is no process
 *   mig <gpu> <gi> <ci or -1> <profile> <start> <size> <uuid or ->
 *   profile <index> <id> <max> <slices> <megabytes> <name>      places <id> <size> <start,start,...>
 *   profiles_v2 <0 or 1>
 *   topo <a> <b> <level>           link <gpu> <link> <kind> <remote pci>
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define SMALL 7
#define NO_FUNCTION 13
#define IN_USE 19
#define NO_ROOM 23
#define MOST 16

typedef struct { int used, index, temp, mig, limit, persistence, numa, mps, idle; unsigned long long reasons; char uuid[80], pci[32], name[96], serial[40];
                 int min, max, standard, capped, cap, reset_for_mig, mode_set, mode; int locked, low, high; } Gpu;
typedef struct { int gpu, gi, ci, profile, start, size; char uuid[80]; } Mig;
typedef struct { int id, size, many, starts[8]; } Places;
typedef struct { int gpu, gi, processes; } Hold;
typedef struct { int index, id, max, slices; unsigned long long megabytes; char name[32]; } Profile;
typedef struct { int gpu, code; char call[64]; } Fault;
typedef struct { int a, b, level; } Pair;
typedef struct { int gpu, link, kind; char pci[32]; } Link;

static int ready, init_code, cuda, count, epoch, migs, profiles, faults, pairs, links, profiles_v2, places, holds, made, gone, next_gi = 1;
static char driver[80];
static Gpu gpus[MOST];
static Mig mig[MOST * 8], made_mig[MOST * 8], gone_mig[MOST * 16];
static Places place[32];
static Hold hold[32];
static Profile profile[32];
static Fault fault[64];
static Pair pair[MOST * MOST];
static Link link_[256];

static void note(const char *act, const char *uuid, int low, int high) {
    FILE *log = fopen(getenv("NVML_LOG"), "a");
    if (log) { fprintf(log, "%s %s %d %d\n", act, uuid, low, high); fclose(log); }
}

static void load(void) {
    char line[512], key[64], value[256], call[64], text[96];
    int a, b, c, d, e, f, n;
    FILE *script = fopen(getenv("NVML_SCRIPT"), "r");
    if (!script) { init_code = 999; return; }
    init_code = 0; cuda = 12080; count = migs = profiles = faults = pairs = links = places = holds = 0; profiles_v2 = 1;
    strcpy(driver, "570.133.20");
    for (a = 0; a < MOST; a++) { gpus[a].used = 0; gpus[a].uuid[0] = 0; gpus[a].mig = -1; gpus[a].limit = gpus[a].max = gpus[a].standard = 700000; gpus[a].min = 200000; gpus[a].reset_for_mig = 0; gpus[a].persistence = 1; gpus[a].numa = -1;
        gpus[a].mps = 0; gpus[a].idle = 1980; gpus[a].reasons = 0; gpus[a].temp = 40; gpus[a].index = a; strcpy(gpus[a].name, "NVIDIA H100 80GB HBM3");
        strcpy(gpus[a].serial, "1650522000000"); sprintf(gpus[a].pci, "00000000:%02X:00.0", a + 1); }
    while (fgets(line, sizeof line, script)) {
        if (sscanf(line, "init %d", &init_code) == 1 || sscanf(line, "driver %79s", driver) == 1 || sscanf(line, "cuda %d", &cuda) == 1) continue;
        if (sscanf(line, "profiles_v2 %d", &profiles_v2) == 1) continue;
        if (sscanf(line, "epoch %d", &n) == 1) { if (n != epoch) { epoch = n; made = gone = 0; for (a = 0; a < MOST; a++) gpus[a].locked = gpus[a].capped = gpus[a].mode_set = 0; } continue; }
        if (sscanf(line, "gpu %d %63s %255[^\n]", &a, key, value) == 3 && a >= 0 && a < MOST) {
            Gpu *g = &gpus[a]; g->used = 1; if (a >= count) count = a + 1;
            if (!strcmp(key, "uuid")) strncpy(g->uuid, value, 79);
            else if (!strcmp(key, "pci")) strncpy(g->pci, value, 31);
            else if (!strcmp(key, "name")) strncpy(g->name, value, 95);
            else if (!strcmp(key, "serial")) strncpy(g->serial, value, 39);
            else if (!strcmp(key, "temp")) g->temp = atoi(value);
            else if (!strcmp(key, "mig")) g->mig = atoi(value);
            else if (!strcmp(key, "limit")) g->limit = atoi(value);
            else if (!strcmp(key, "min")) g->min = atoi(value);
            else if (!strcmp(key, "max")) g->max = atoi(value);
            else if (!strcmp(key, "default")) g->standard = atoi(value);
            else if (!strcmp(key, "reset_for_mig")) g->reset_for_mig = atoi(value);
            else if (!strcmp(key, "persistence")) g->persistence = atoi(value);
            else if (!strcmp(key, "numa")) g->numa = atoi(value);
            else if (!strcmp(key, "mps")) g->mps = atoi(value);
            else if (!strcmp(key, "idle")) g->idle = atoi(value);
            else if (!strcmp(key, "reasons")) g->reasons = strtoull(value, 0, 0);
        } else if (sscanf(line, "error %d %63s %d", &a, call, &b) == 3) {
            fault[faults].gpu = a; fault[faults].code = b; strcpy(fault[faults++].call, call);
        } else if (sscanf(line, "mig %d %d %d %d %d %d %79s", &a, &b, &c, &d, &e, &f, text) == 7) {
            Mig *m = &mig[migs++]; m->gpu = a; m->gi = b; m->ci = c; m->profile = d; m->start = e; m->size = f; strcpy(m->uuid, text);
        } else if (sscanf(line, "profile %d %d %d %d %d %31[^\n]", &a, &b, &c, &d, &e, text) == 6) {
            Profile *p = &profile[profiles++]; p->index = a; p->id = b; p->max = c; p->slices = d; p->megabytes = e; strcpy(p->name, text);
        } else if (sscanf(line, "places %d %d %63s", &a, &b, call) == 3) {
            Places *p = &place[places++]; p->id = a; p->size = b; p->many = 0;
            for (char *one = strtok(call, ","); one && p->many < 8; one = strtok(0, ",")) p->starts[p->many++] = atoi(one);
        } else if (sscanf(line, "hold %d %d %d", &a, &b, &c) == 3) {
            hold[holds].gpu = a; hold[holds].gi = b; hold[holds++].processes = c;
        } else if (sscanf(line, "topo %d %d %d", &a, &b, &c) == 3) {
            pair[pairs].a = a; pair[pairs].b = b; pair[pairs++].level = c;
        } else if (sscanf(line, "link %d %d %d %31s", &a, &b, &c, text) == 4) {
            link_[links].gpu = a; link_[links].link = b; link_[links].kind = c; strcpy(link_[links++].pci, text);
        }
    }
    fclose(script);
    for (a = b = 0; a < migs; a++) { /* what was destroyed is gone from the script's instances, what was made is added */
        for (c = 0; c < gone && (gone_mig[c].gpu != mig[a].gpu || gone_mig[c].gi != mig[a].gi); c++) { }
        if (c == gone) { Mig kept = mig[a]; mig[b++] = kept; }
    }
    for (migs = b, a = 0; a < made; a++) mig[migs++] = made_mig[a];
}

static int failing(Gpu *g, const char *call) {
    for (int n = 0; n < faults; n++) if (fault[n].gpu == g->index && (!strcmp(fault[n].call, call) || !strcmp(fault[n].call, "all"))) return fault[n].code;
    return SUCCESS;
}
#define CHECK(g, call) do { int code_ = failing((Gpu *)(g), call); if (code_) return code_; } while (0)
#define IS_MIG(handle) ((Mig *)(handle) >= mig && (Mig *)(handle) < mig + MOST * 8)

int nvmlInitWithFlags(unsigned flags) { (void)flags; load(); ready = init_code == 0; return init_code; }
int nvmlShutdown(void) { ready = 0; return SUCCESS; }
const char *nvmlErrorString(int code) {
    switch (code) {
        case 3: return "Not Supported"; case 4: return "Insufficient Permissions"; case 6: return "Not Found"; case 9: return "Driver Not Loaded"; case 10: return "Timeout";
        case 15: return "GPU is lost"; case 16: return "GPU requires reset"; case 18: return "Driver/library version mismatch"; case 19: return "In use by another client"; case 23: return "Insufficient Resources"; default: return "Unknown Error";
    }
}
static int text_to(char *to, unsigned size, const char *from) { if (strlen(from) + 1 > size) return SMALL; strcpy(to, from); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text_to(to, size, driver); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = cuda; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *found) { if (!ready) return UNINITIALIZED; load(); if (init_code) return init_code; *found = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (!ready) return UNINITIALIZED;
    if ((int)index >= count) return INVALID;
    CHECK(&gpus[index], "nvmlDeviceGetHandleByIndex"); *handle = &gpus[index]; return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (!ready) return UNINITIALIZED;
    load();
    for (int n = 0; n < count; n++) if (!strcmp(gpus[n].uuid, uuid)) { CHECK(&gpus[n], "nvmlDeviceGetHandleByUUID"); *handle = &gpus[n]; return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *handle, char *to, unsigned size) {
    if (IS_MIG(handle)) return text_to(to, size, ((Mig *)handle)->uuid);
    Gpu *g = handle; CHECK(g, "nvmlDeviceGetUUID"); return g->uuid[0] ? text_to(to, size, g->uuid) : 15;
}
int nvmlDeviceGetName(void *handle, char *to, unsigned size) { CHECK(handle, "nvmlDeviceGetName"); return text_to(to, size, ((Gpu *)handle)->name); }
int nvmlDeviceGetSerial(void *handle, char *to, unsigned size) { CHECK(handle, "nvmlDeviceGetSerial"); return text_to(to, size, ((Gpu *)handle)->serial); }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    CHECK(handle, "nvmlDeviceGetPciInfo"); memset(pci, 0, sizeof *pci); strcpy(pci->bus_id, ((Gpu *)handle)->pci); return SUCCESS;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *to) { (void)sensor; CHECK(handle, "nvmlDeviceGetTemperature"); *to = ((Gpu *)handle)->temp; return SUCCESS; }
typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(void *handle, Rates *to) { CHECK(handle, "nvmlDeviceGetUtilizationRates"); to->gpu = 5; to->memory = 1; return SUCCESS; }
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(void *handle, Memory *to) {
    CHECK(handle, "nvmlDeviceGetMemoryInfo"); to->total = 85520809984ULL; to->used = 1000000; to->free = to->total - to->used; return SUCCESS;
}
int nvmlDeviceGetFanSpeed(void *handle, unsigned *to) { CHECK(handle, "nvmlDeviceGetFanSpeed"); *to = 30; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *to) {
    Gpu *g = handle; CHECK(handle, "nvmlDeviceGetPowerManagementLimit"); *to = g->capped ? g->cap : g->limit; return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *low, unsigned *high) {
    Gpu *g = handle; CHECK(handle, "nvmlDeviceGetPowerManagementLimitConstraints"); *low = g->min; *high = g->max; return SUCCESS;
}
int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *to) {
    CHECK(handle, "nvmlDeviceGetPowerManagementDefaultLimit"); *to = ((Gpu *)handle)->standard; return SUCCESS;
}
int nvmlDeviceSetPowerManagementLimit(void *handle, unsigned milliwatts) {
    Gpu *g = handle; note("power", g->uuid, milliwatts, 0); CHECK(g, "nvmlDeviceSetPowerManagementLimit");
    if ((int)milliwatts < g->min || (int)milliwatts > g->max) return INVALID;
    g->capped = 1; g->cap = milliwatts; return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(void *handle, unsigned *to) { CHECK(handle, "nvmlDeviceGetPersistenceMode"); *to = ((Gpu *)handle)->persistence; return SUCCESS; }
int nvmlDeviceGetNumaNodeId(void *handle, int *to) { int n = ((Gpu *)handle)->numa; if (n < 0) return NOT_SUPPORTED; *to = n; return SUCCESS; }
int nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long long *set) {
    int n = ((Gpu *)handle)->numa; if (n < 0) return NOT_SUPPORTED;
    memset(set, 0, size * sizeof *set); set[n] = 0xffffffffULL; set[n + 2] = 0x3ULL; return SUCCESS;
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *size, Process *to) {
    unsigned n = ((Gpu *)handle)->mps; if (!n) { *size = 0; return SUCCESS; }
    if (*size < n) { *size = n; return SMALL; }
    for (unsigned k = 0; k < n; k++) { to[k].pid = 100 + k; to[k].used = 1; to[k].gi = to[k].ci = 0xffffffffu; }
    *size = n; return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *to) {
    Gpu *g = handle; (void)kind; CHECK(g, "nvmlDeviceGetClockInfo"); int mhz = g->idle;
    if (g->locked) mhz = mhz < g->low ? g->low : mhz > g->high ? g->high : mhz;
    *to = mhz; return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *to) { (void)kind; CHECK(handle, "nvmlDeviceGetMaxClockInfo"); *to = 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *to) { *to = ((Gpu *)handle)->reasons; return SUCCESS; }
int nvmlDeviceSetGpuLockedClocks(void *handle, unsigned low, unsigned high) {
    Gpu *g = handle; CHECK(g, "nvmlDeviceSetGpuLockedClocks"); if (low > high) return INVALID;
    g->locked = 1; g->low = low; g->high = high; note("set", g->uuid, low, high); return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(void *handle) { Gpu *g = handle; CHECK(g, "nvmlDeviceResetGpuLockedClocks"); g->locked = 0; note("reset", g->uuid, 0, 0); return SUCCESS; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Gpu *g = handle; CHECK(handle, "nvmlDeviceGetMigMode"); if (g->mig < 0) return NOT_SUPPORTED;
    *current = *pending = g->mig;
    if (g->mode_set) { *pending = g->mode; if (!g->reset_for_mig) *current = g->mode; }
    return SUCCESS;
}
int nvmlDeviceSetMigMode(void *handle, unsigned mode, int *status) {
    Gpu *g = handle; note("mig_mode", g->uuid, mode, 0); CHECK(g, "nvmlDeviceSetMigMode"); if (g->mig < 0) return NOT_SUPPORTED;
    g->mode_set = 1; g->mode = mode; *status = SUCCESS; return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *to) { (void)handle; *to = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **device) {
    unsigned seen = 0;
    for (int n = 0; n < migs; n++) if (&gpus[mig[n].gpu] == handle && mig[n].ci >= 0 && seen++ == index) { *device = &mig[n]; return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *to) { *to = ((Mig *)device)->gi; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *to) { *to = ((Mig *)device)->ci; return SUCCESS; }
static Profile *profile_at(unsigned index) { for (int n = 0; n < profiles; n++) if (profile[n].index == (int)index) return &profile[n]; return 0; }
typedef struct { unsigned id, p2p, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; unsigned long long megabytes; } Info1;
typedef struct { unsigned version, id, p2p, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; unsigned long long megabytes; char name[96]; } Info2;
int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned index, Info1 *to) {
    Profile *p = profile_at(index); (void)handle; if (!p) return NOT_SUPPORTED;
    memset(to, 0, sizeof *to); to->id = p->id; to->slices = p->slices; to->instances = p->max; to->megabytes = p->megabytes; return SUCCESS;
}
int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned index, Info2 *to) {
    Profile *p = profile_at(index); (void)handle; if (!profiles_v2) return NO_FUNCTION; if (!p) return NOT_SUPPORTED;
    to->id = p->id; to->slices = p->slices; to->instances = p->max; to->megabytes = p->megabytes; strcpy(to->name, p->name); return SUCCESS;
}
int nvmlDeviceGetGpuInstances(void *handle, unsigned id, void **to, unsigned *size) {
    CHECK(handle, "nvmlDeviceGetGpuInstances"); unsigned n = 0;
    for (int k = 0; k < migs; k++) if (&gpus[mig[k].gpu] == handle && mig[k].profile == (int)id) to[n++] = &mig[k];
    *size = n; return SUCCESS;
}
typedef struct { void *device; unsigned id, profile, start, size; } Instance;
int nvmlGpuInstanceGetInfo(void *instance, Instance *to) {
    Mig *m = instance; to->device = &gpus[m->gpu]; to->id = m->gi; to->profile = m->profile; to->start = m->start; to->size = m->size; return SUCCESS;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned id, unsigned *to, unsigned *size) {
    CHECK(handle, "nvmlDeviceGetGpuInstancePossiblePlacements");
    for (int n = 0; n < places; n++) if (place[n].id == (int)id) {
        if (to) for (int k = 0; k < place[n].many && k < (int)*size; k++) { to[2 * k] = place[n].starts[k]; to[2 * k + 1] = place[n].size; }
        *size = place[n].many; return SUCCESS;
    }
    *size = 0; return SUCCESS;
}
static Mig *mig_at(int gpu, int gi) { for (int n = 0; n < migs; n++) if (mig[n].gpu == gpu && mig[n].gi == gi) return &mig[n]; return 0; }
int nvmlDeviceGetGpuInstanceById(void *handle, unsigned gi, void **to) { *to = mig_at(((Gpu *)handle)->index, gi); return *to ? SUCCESS : NOT_FOUND; }
int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned id, const unsigned *at, void **to) {
    Gpu *g = handle; note("create", g->uuid, id, at[0]); CHECK(g, "nvmlDeviceCreateGpuInstanceWithPlacement");
    for (int n = 0; n < migs; n++) if (mig[n].gpu == g->index && (int)at[0] < mig[n].start + mig[n].size && mig[n].start < (int)(at[0] + at[1])) return NO_ROOM;
    Mig *m = &made_mig[made++]; m->gpu = g->index; m->profile = id; m->start = at[0]; m->size = at[1]; m->ci = -1;
    while (mig_at(g->index, next_gi)) next_gi++;
    m->gi = next_gi++; sprintf(m->uuid, "MIG-made-%d", m->gi); mig[migs] = *m; *to = &mig[migs++]; return SUCCESS;
}
static void set_compute(Mig *m, int ci) { m->ci = ci; for (int n = 0; n < made; n++) if (made_mig[n].gpu == m->gpu && made_mig[n].gi == m->gi) made_mig[n].ci = ci; }
typedef struct { unsigned id, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; } ComputeInfo;
int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *instance, unsigned index, unsigned engine, ComputeInfo *to) {
    (void)engine; int slices = 1; Mig *m = instance;
    for (int n = 0; n < profiles; n++) if (profile[n].id == m->profile) slices = profile[n].slices;
    if (index > 3 || (int)index + 1 > slices) return NOT_SUPPORTED;
    memset(to, 0, sizeof *to); to->id = 100 + index; to->slices = index + 1; to->instances = slices / (index + 1); return SUCCESS;
}
int nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **to) {
    Mig *m = instance; CHECK(&gpus[m->gpu], "nvmlGpuInstanceCreateComputeInstance"); note("compute", gpus[m->gpu].uuid, m->gi, id); set_compute(m, 0); *to = m; return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstances(void *instance, unsigned id, void **to, unsigned *size) {
    Mig *m = instance; int slices = 1;
    for (int n = 0; n < profiles; n++) if (profile[n].id == m->profile) slices = profile[n].slices;
    *size = m->ci >= 0 && (int)id == 99 + slices; if (*size) to[0] = m; return SUCCESS;
}
static int held(Mig *m) { for (int n = 0; n < holds; n++) if (hold[n].gpu == m->gpu && hold[n].gi == m->gi) return 1; return 0; }
int nvmlComputeInstanceDestroy(void *compute) {
    Mig *m = compute; note("compute_destroy", gpus[m->gpu].uuid, m->gi, 0); CHECK(&gpus[m->gpu], "nvmlComputeInstanceDestroy");
    if (held(m)) return IN_USE;
    set_compute(m, -1); return SUCCESS;
}
int nvmlGpuInstanceDestroy(void *instance) {
    Mig *m = instance, was = *m; note("destroy", gpus[m->gpu].uuid, m->gi, m->start); CHECK(&gpus[m->gpu], "nvmlGpuInstanceDestroy");
    if (held(m) || m->ci >= 0) return IN_USE;
    for (int n = 0; n < made; n++) if (made_mig[n].gpu == was.gpu && made_mig[n].gi == was.gi) { made_mig[n] = made_mig[--made]; load(); return SUCCESS; }
    gone_mig[gone++] = was; load(); return SUCCESS;
}
static int running(void *handle, unsigned *size, Process *to) {
    unsigned n = 0;
    for (int k = 0; k < holds; k++) if (hold[k].gpu == ((Gpu *)handle)->index) n += hold[k].processes;
    if (*size < n) { *size = n; return SMALL; }
    *size = n; n = 0;
    for (int k = 0; k < holds; k++) for (int p = 0; hold[k].gpu == ((Gpu *)handle)->index && p < hold[k].processes; p++, n++) {
        to[n].pid = 200 + n; to[n].used = 1; to[n].gi = hold[k].gi; to[n].ci = 0;
    }
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *size, Process *to) { CHECK(handle, "nvmlDeviceGetComputeRunningProcesses"); return running(handle, size, to); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *size, Process *to) { (void)handle; (void)to; *size = 0; return SUCCESS; }
int nvmlDeviceGetTopologyCommonAncestor(void *x, void *y, int *level) {
    int a = ((Gpu *)x)->index, b = ((Gpu *)y)->index;
    for (int n = 0; n < pairs; n++) if ((pair[n].a == a && pair[n].b == b) || (pair[n].a == b && pair[n].b == a)) { *level = pair[n].level; return SUCCESS; }
    return NOT_SUPPORTED;
}
static Link *link_at(void *handle, unsigned number) {
    for (int n = 0; n < links; n++) if (link_[n].gpu == ((Gpu *)handle)->index && link_[n].link == (int)number) return &link_[n];
    return 0;
}
int nvmlDeviceGetNvLinkState(void *handle, unsigned number, unsigned *to) { if (!link_at(handle, number)) return INVALID; *to = 1; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned number, unsigned *to) { *to = link_at(handle, number)->kind; return SUCCESS; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned number, Pci *pci) { memset(pci, 0, sizeof *pci); strcpy(pci->bus_id, link_at(handle, number)->pci); return SUCCESS; }
