from console.models.user import ApiToken, IdempotencyRecord, RoleGrant, SavedView, User

__all__ = ["ApiToken", "IdempotencyRecord", "RoleGrant", "SavedView", "User"]
