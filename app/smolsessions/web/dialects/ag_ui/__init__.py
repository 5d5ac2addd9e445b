"""AG-UI 1.0: runs of an agent in a thread, for CopilotKit and other clients that speak it."""

from smolsessions.web.dialects.ag_ui.runs import routes

__all__ = ["routes"]
