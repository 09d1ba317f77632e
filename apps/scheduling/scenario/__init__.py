"""Scenario files: a small cluster, a moment, and what must happen."""

from apps.scheduling.scenario.answer import Answer
from apps.scheduling.scenario.expect import failures
from apps.scheduling.scenario.parse import ScenarioError, read
from apps.scheduling.scenario.run import Outcome, play
from apps.scheduling.scenario.shape import Scenario

__all__ = ["Answer", "Outcome", "Scenario", "ScenarioError", "failures", "play", "read"]
