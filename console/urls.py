from django.urls import include, path

from console.views import charts

urlpatterns = [
    path("accounts/", include("allauth.urls")),
    path("charts/gpus/<str:uuid>/<slug:panel>", charts.gpu_chart, name="gpu_chart"),
    path("charts/sites/<str:code>/<slug:panel>", charts.site_chart, name="site_chart"),
]
