"""From records to alerts: partials are made in the tier, the evaluator turns them into alert events."""
