from tenants.models.tenant import Membership, NamespaceMapping, Tenant

__all__ = ["Membership", "NamespaceMapping", "Tenant"]
