"""How host names are compared, wherever they come from. Pure: no Django."""

import ipaddress


def host_label(host_name: str) -> str:
    """What host names are compared by: the first label in lower case; an address as a whole, in one spelling."""
    name = host_name.strip().rstrip(".").lower()
    if name[:1].isdigit() or ":" in name:
        try:
            return str(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            pass
    return name.split(".", 1)[0]


def host_of_address(address: str) -> str:
    """The host of a target's address: `10.0.0.1` of `10.0.0.1:9400`, `2001:db8::1` of `[2001:db8::1]:9400`."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else address
