from console.models.user import ApiToken, RoleGrant, SavedView, User

__all__ = ["ApiToken", "RoleGrant", "SavedView", "User"]
