// The end of one's own long work, told on whatever live page one is by then.
import { toast } from "./toasts.js";

const strings = document.getElementById("strings").dataset;
const KINDS = { done: "success", waiting: "warning", failed: "error" };

export function tellJob(notice) {
  const kind = KINDS[notice.state];
  if (!kind || location.pathname === notice.url) return;
  toast(notice.text, kind, { action: { label: strings.seeJob, run: () => location.assign(notice.url) }, seconds: 20 });
}
