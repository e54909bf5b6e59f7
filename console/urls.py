from django.urls import include, path

from console.views import charts, health

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("livez", health.healthz, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("", include("console.views.sign_in")),
    path("", include("console.views.search")),
    path("", include("console.views.lists")),
    path("", include("console.views.regions")),
    path("", include("console.views.sites")),
    path("", include("console.views.nodes")),
    path("", include("console.views.gpus")),
    path("", include("console.views.maintenance")),
    path("", include("console.views.overview")),
    path("", include("console.views.wall")),
    path("", include("console.views.map")),
    path("", include("console.views.live")),
    path("", include("console.views.commands")),
    path("", include("console.views.holds")),
    path("", include("console.views.guard_rails")),
    path("", include("console.views.switches")),
    path("", include("console.views.jobs")),
    path("", include("console.views.imports")),
    path("", include("console.views.exports")),
    path("", include("console.views.audit")),
    path("", include("console.views.settings")),
    path("", include("console.views.settings_tokens")),
    path("", include("console.views.settings_users")),
    path("", include("console.views.settings_tenants")),
    path("", include("console.views.settings_senders")),
    path("", include("console.views.settings_agents")),
    path("api/", include("console.api.urls")),
    path("charts/gpus/<str:uuid>/<slug:panel>", charts.gpu_chart, name="gpu_chart"),
    path("charts/sites/<str:code>/<slug:panel>", charts.site_chart, name="site_chart"),
]

handler400 = "console.errors.bad_request"
handler403 = "console.errors.forbidden"
handler404 = "console.errors.not_found"
handler429 = "console.errors.too_many_requests"
handler500 = "console.errors.server_error"
