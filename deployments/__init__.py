"""Everything around a flow: deployments, a local server with worker and UI, runs from a CI job."""
