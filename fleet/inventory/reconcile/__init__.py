"""Brings what agents and telemetry see together with what the inventory holds. `fleet.inventory.seen` is its door."""
