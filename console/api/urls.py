"""`/api/`: version 1, its schema and its browsable page."""

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import SimpleRouter

from console.api import (
    about,
    agents,
    audit,
    commands,
    controls,
    docs,
    exports,
    gpus,
    guardrails,
    health,
    imports,
    jobs,
    maintenance,
    nodes,
    overview,
    people,
    places,
    profile,
    saved_views,
    search,
    senders,
    service_discovery,
    skus,
    switches,
)

router = SimpleRouter(use_regex_path=True)
router.register("areas", places.AreaViewSet, basename="api-area")
router.register("regions", places.RegionViewSet, basename="api-region")
router.register("sites", places.SiteViewSet, basename="api-site")
router.register("nodes", nodes.NodeViewSet, basename="api-node")
router.register("gpus", gpus.GpuViewSet, basename="api-gpu")
router.register("controls", controls.ControlViewSet, basename="api-control")
router.register("key-changes", agents.KeyChangeViewSet, basename="api-key-change")
router.register("maintenance", maintenance.MaintenanceViewSet, basename="api-maintenance")
router.register("users", people.UserViewSet, basename="api-user")
router.register("role-grants", people.RoleGrantViewSet, basename="api-role-grant")
router.register("tenants", people.TenantViewSet, basename="api-tenant")
router.register("memberships", people.MembershipViewSet, basename="api-membership")
router.register("namespaces", people.NamespaceViewSet, basename="api-namespace")
router.register("tokens", people.TokenViewSet, basename="api-token")
router.register("senders", senders.SenderViewSet, basename="api-sender")
router.register("workloads", gpus.WorkloadViewSet, basename="api-workload")
router.register("findings", health.FindingViewSet, basename="api-finding")
router.register("transitions", health.TransitionViewSet, basename="api-transition")
router.register("disagreements", health.DisagreementViewSet, basename="api-disagreement")
router.register("data-quality", health.DataQualityViewSet, basename="api-data-quality")
router.register("xid-events", health.XidEventViewSet, basename="api-xid-event")
router.register("jobs", jobs.JobViewSet, basename="api-job")
router.register("imports", imports.ImportViewSet, basename="api-import")
router.register("views", saved_views.SavedViewViewSet, basename="api-view")
router.register("sessions", profile.SessionViewSet, basename="api-session")
router.register("audit", audit.AuditViewSet, basename="api-audit")
router.register("commands", commands.CommandViewSet, basename="api-command")
router.register("breakers", guardrails.BreakerViewSet, basename="api-breaker")
router.register("freezes", guardrails.FreezeViewSet, basename="api-freeze")
router.register("switches", switches.SwitchViewSet, basename="api-switch")

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/about", about.AboutView.as_view(), name="api-about"),
    path("v1/gpus/<str:uuid>/clock-range", controls.ClockRangeView.as_view(), name="api-clock-range"),
    path("v1/nodes/enrolment-bundles", agents.EnrolmentBundlesView.as_view(), name="api-enrolment-bundles"),
    path("v1/nodes/<int:pk>/revoke-agent", agents.RevokeAgentView.as_view(), name="api-revoke-agent"),
    path("v1/sd/<str:job>", service_discovery.service_discovery, name="api-service-discovery"),
    path("v1/sites/export", exports.SiteExport.as_view({"get": "export"}), name="api-site-export"),
    path("v1/nodes/export", exports.NodeExport.as_view({"get": "export"}), name="api-node-export"),
    path("v1/gpus/export", exports.GpuExport.as_view({"get": "export"}), name="api-gpu-export"),
    path("v1/jobs/<uuid:job>/log/", jobs.JobLogViewSet.as_view({"get": "list"}), name="api-job-log"),
    path("v1/imports/<uuid:job>/rows/", imports.ImportRowViewSet.as_view({"get": "list"}), name="api-import-rows"),
    path("v1/audit/export/", audit.AuditExport.as_view({"get": "export"}), name="api-audit-export"),
    path("v1/audit/verification/", audit.AuditVerificationView.as_view(), name="api-audit-verification"),
    path("v1/guard-rails/", guardrails.GuardRailView.as_view(), name="api-guard-rails"),
    path("v1/command-kinds/", commands.CommandKindView.as_view(), name="api-command-kinds"),
    path("v1/commands/<uuid:command>/targets/", commands.CommandTargetViewSet.as_view({"get": "list"}), name="api-command-targets"),
    path("v1/switches/<uuid:switch>/answers/", switches.SwitchAnswerViewSet.as_view({"get": "list"}), name="api-switch-answers"),
    path("v1/search", search.SearchView.as_view(), name="api-search"),
    path("v1/overview", overview.OverviewView.as_view(), name="api-overview"),
    path("v1/skus/", skus.SkuListView.as_view(), name="api-skus"),
    path("v1/skus/<str:key>/", skus.SkuDetailView.as_view(), name="api-sku"),
    path("v1/profile", profile.ProfileView.as_view(), name="api-profile"),
    path("v1/profile/password", profile.OwnPasswordView.as_view(), name="api-profile-password"),
    path("v1/sessions/revoke-others", profile.SessionViewSet.as_view({"post": "revoke_others"}), name="api-sessions-revoke-others"),
    path("v1/", include(router.urls)),
    path("schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("docs/", docs.docs, name="api-docs"),
    path("v1/<path:rest>", docs.not_found),
]
