"""What workers of the console do: each task translates and makes one call."""

from celery import shared_task

from console import tenancy


@shared_task(name="console.assign_new_workloads")
def assign_new_workloads() -> None:
    tenancy.assign_new_workloads()


@shared_task(name="console.assign_tenants")
def assign_tenants() -> None:
    tenancy.assign_tenants()
