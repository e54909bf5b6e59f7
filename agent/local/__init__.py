"""What an agent does on its own: reservations, allocation of slices, power schedule, metering; the decisions are pure."""
