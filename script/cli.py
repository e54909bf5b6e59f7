"""`script/masthead`: commands and switches from a terminal, over the REST API and nothing else. The same words as the pages and the API.

Exit status: 0 done, 1 refused or not all done, 2 wrong use, 3 no answer from the console.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import click
import httpx

TIMEOUT_SECONDS = 30.0
OVER = {"done", "aborted", "denied", "expired"}


class Refused(click.ClickException):
    """The console said no."""

    exit_code = 1


class Away(click.ClickException):
    """The console did not answer."""

    exit_code = 3


class Api:
    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(base_url=f"{url.rstrip('/')}/api/v1/", headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer's JSON. Raises Refused with the problem's detail, Away when there is no answer."""
        try:
            answer = self._client.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise Away(f"{self._client.base_url}: {error}") from error
        try:
            found = answer.json()
        except ValueError as error:
            raise Away(f"{self._client.base_url}{path}: HTTP {answer.status_code}, not an answer of the API") from error
        if answer.is_error:
            raise Refused(f"{answer.status_code} {found.get('detail', found)}")
        return found


def out(as_json: bool, found: Any, text: str) -> None:
    click.echo(json.dumps(found, indent=2) if as_json else text)


def row(command: dict[str, Any]) -> str:
    return f"{command['id']}  {command['state']:<9}  {command['kind']:<12}  class {command['risk']}  {command['created_by']}: {command['reason']}"


@click.group()
@click.option("--url", envvar="MASTHEAD_URL", required=True, help="Address of the console (MASTHEAD_URL).")
@click.option("--token", envvar="MASTHEAD_TOKEN", required=True, help="API token (MASTHEAD_TOKEN; better than on the command line).")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def main(context: click.Context, url: str, token: str, output: str) -> None:
    """Commands and switches of Masthead."""
    api = Api(url, token)
    context.call_on_close(api.close)
    context.obj = (api, output == "json")


@main.command("list")
@click.option("--state", help="For example running, awaiting, done.")
@click.option("--kind")
@click.pass_obj
def list_commands(obj: tuple[Api, bool], state: str | None, kind: str | None) -> None:
    """The newest commands."""
    api, as_json = obj
    query = httpx.QueryParams({name: value for name, value in (("state", state), ("kind", kind)) if value})
    found = api.ask("GET", f"commands/?{query}")
    out(as_json, found["results"], "\n".join(row(one) for one in found["results"]) or "No commands.")


@main.command()
@click.argument("command_id")
@click.pass_obj
def show(obj: tuple[Api, bool], command_id: str) -> None:
    """One command with its targets."""
    api, as_json = obj
    found = api.ask("GET", f"commands/{command_id}/")
    targets = api.ask("GET", f"commands/{command_id}/targets/?page_size=200")["results"]
    lines = [
        row(found),
        *(f"  {one['node_host_name']} {one['gpu_uuid']} {one['state']} {one['code']} {one['detail'] or one['waits_for']}".rstrip() for one in targets),
    ]
    out(as_json, {**found, "targets": targets}, "\n".join(lines))


def _selection(nodes: str, sites: str, gpus: str, list_name: str, query: str, expected: int | None) -> dict[str, Any]:
    given = [name for name, value in (("--nodes", nodes), ("--sites", sites), ("--gpus", gpus), ("--list", list_name)) if value]
    if len(given) != 1:
        raise click.UsageError("One of --nodes, --sites, --gpus, --list.")
    if nodes:
        try:
            return {"nodes": [int(key) for key in nodes.split(",")]}
        except ValueError as error:
            raise click.UsageError("--nodes: whole numbers with commas.") from error
    if list_name:
        if expected is None:
            raise click.UsageError("--expected: the count that you saw, so that it acts on those and no others.")
        return {"list": list_name, "query": query, "expected": expected}
    return {"sites": sites.split(",")} if sites else {"gpus": gpus.split(",")}


def _parameters(given: tuple[str, ...]) -> dict[str, Any]:
    """name=value; a value that reads as JSON is taken as such, anything else as text."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign:
            raise click.UsageError(f"-p {one}: name=value.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def targets(function: Any) -> Any:
    """The options that choose what a command acts on."""
    for option in (
        click.option("-p", "--parameter", "parameters", multiple=True, help="name=value, as the kind's schema says."),
        click.option("--break-glass", is_flag=True, help="Past PHY, freezes and rates; two others approve."),
        click.option("--expected", type=int),
        click.option("--query", default="", help="The filter as in the page's address."),
        click.option("--list", "list_name", type=click.Choice(["sites", "nodes", "gpus"])),
        click.option("--gpus", default="", help="UUIDs with commas."),
        click.option("--sites", default="", help="Codes with commas."),
        click.option("--nodes", default="", help="Numbers with commas."),
        click.argument("kind"),
    ):
        function = option(function)
    return function


def _preview(api: Api, kind: str, selection: dict[str, Any], parameters: dict[str, Any], break_glass: bool) -> Any:
    return api.ask("POST", "commands/preview/", {"kind": kind, "selection": selection, "parameters": parameters, "break_glass": break_glass})


def _seen(found: dict[str, Any]) -> str:
    content = found["content"]
    lines = [
        f"{content['title']}: {content['targets']} targets at {content['sites']} sites, class {content['risk']}",
        f"  PHY placements touched: {content['phy_placements']}",
        f"  workloads: {content['workloads']} of {', '.join(content['tenants']) or 'no tenant'}",
        f"  unreachable now: {content['unreachable']}",
        f"  waves: {' + '.join(map(str, content['waves']))}",
        *(f"  left out: {one['target']}: {one['why']}" for one in (*content["refused"], *content["skipped"])),
        f"  undo: {content['undo'] or 'there is no way back'}",
    ]
    if content["approvals"]:
        lines.append(f"  approvals by others: {content['approvals']}; phrase: {content['phrase']}")
    return "\n".join(lines)


@main.command()
@targets
@click.pass_obj
def preview(
    obj: tuple[Api, bool],
    kind: str,
    nodes: str,
    sites: str,
    gpus: str,
    list_name: str,
    query: str,
    expected: int | None,
    break_glass: bool,
    parameters: tuple[str, ...],
) -> None:
    """What a command would do. Nothing is done."""
    api, as_json = obj
    found = _preview(api, kind, _selection(nodes, sites, gpus, list_name, query, expected), _parameters(parameters), break_glass)
    out(as_json, found, _seen(found))


@main.command()
@targets
@click.option("--reason", required=True)
@click.option("--confirm", default="", help="The phrase of the preview, for class 3 and 4.")
@click.option("--watch", "and_watch", is_flag=True, help="Stay until it is over.")
@click.pass_context
def run(
    context: click.Context, kind: str, nodes: str, sites: str, gpus: str, list_name: str, query: str, expected: int | None, break_glass: bool,
    parameters: tuple[str, ...], reason: str, confirm: str, and_watch: bool,
) -> None:  # fmt: skip
    """Preview it, show the preview, and submit exactly that."""
    api, as_json = context.obj
    selection, given = _selection(nodes, sites, gpus, list_name, query, expected), _parameters(parameters)
    found = _preview(api, kind, selection, given, break_glass)
    if not as_json:
        click.echo(_seen(found))
    phrase = found["content"]["phrase"]
    if phrase and not confirm and sys.stdin.isatty():
        confirm = click.prompt(f"Type “{phrase}”", default="", show_default=False)
    body = {
        "kind": kind,
        "selection": selection,
        "parameters": given,
        "break_glass": break_glass,
        "preview_hash": found["hash"],
        "reason": reason,
        "confirm": confirm,
    }
    made = api.ask("POST", "commands/", body, **{"Idempotency-Key": str(uuid.uuid4())})
    out(as_json, made, row(made))
    if and_watch:
        context.invoke(watch, command_id=made["id"])


@main.command()
@click.argument("command_id")
@click.option("--seconds", default=3600.0, help="Give up after so long.")
@click.pass_obj
def watch(obj: tuple[Api, bool], command_id: str, seconds: float) -> None:
    """Follow a command to its end."""
    api, as_json = obj
    until, said = time.monotonic() + seconds, ""
    while True:
        found = api.ask("GET", f"commands/{command_id}/")
        line = f"{found['state']}: " + ", ".join(f"{count} {state}" for state, count in sorted(found["states"].items()))
        if line != said and not as_json:
            click.echo(line)
        said = line
        if found["state"] in OVER or time.monotonic() > until:
            break
        time.sleep(1)
    if as_json:
        out(True, found, "")
    clean = found["state"] == "done" and set(found["states"]) <= {"done", "unreachable", "skipped"}
    sys.exit(0 if clean else 1)


def _decision(path: str, said: str) -> click.Command:
    @click.argument("command_id")
    @click.option("--reason", required=True)
    @click.pass_obj
    def act(obj: tuple[Api, bool], command_id: str, reason: str) -> None:
        api, as_json = obj
        found = api.ask("POST", f"commands/{command_id}/{path}/", {"reason": reason})
        out(as_json, found, row(found))

    return click.command(path, help=said)(act)


for _path, _said in (
    ("approve", "Say yes to somebody else's command."),
    ("deny", "Say no: final."),
    ("pause", "Begin no further target."),
    ("resume", "Go on."),
    ("abort", "Begin nothing more and stop what is in flight."),
):
    main.add_command(_decision(_path, _said))


@main.command()
@click.option("--scope", required=True, help="fleet, or area:SLUG, region:SLUG, site:CODE, node:NUMBER.")
@click.option("--tenant", default="")
@click.option("--model", default="")
@click.option("--reason", required=True)
@click.option("--automation", is_flag=True, help="Not a kill: stop our own automation there.")
@click.pass_obj
def kill(obj: tuple[Api, bool], scope: str, tenant: str, model: str, reason: str, automation: bool) -> None:
    """Stop AI work of a scope, never PHY. It holds until it is released."""
    api, as_json = obj
    kind, _, key = scope.partition(":")
    body = {"kind": "automation_off" if automation else "kill", "scope_kind": kind, "scope_key": key, "tenant": tenant, "model": model}
    seen = api.ask("POST", "switches/preview/", body)
    made = api.ask("POST", "switches/", {**body, "reason": reason})
    text = f"{made['id']} armed: {seen['nodes']} nodes at {seen['sites']} sites, {seen['workloads']} AI workloads, {seen['unreachable']} nodes out of contact"
    out(as_json, {"reached": seen, "switch": made}, text)


@main.command()
@click.argument("switch_id")
@click.option("--reason", required=True)
@click.pass_obj
def release(obj: tuple[Api, bool], switch_id: str, reason: str) -> None:
    """Release a switch."""
    api, as_json = obj
    found = api.ask("POST", f"switches/{switch_id}/release/", {"reason": reason})
    out(as_json, found, f"{found['id']} released: {found['standing']['silent']} nodes have not said so yet")


if __name__ == "__main__":
    main()
