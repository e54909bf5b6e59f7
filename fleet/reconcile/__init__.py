"""Brings what agents and telemetry see together with what the inventory holds. `fleet.inventory` is its door."""
