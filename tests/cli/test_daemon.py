"""`git theta daemon …`: the resident's life from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.theta import ok, ok_json, theta
from tests.daemons import daemons
from tests.git.models import model
from tests.gitrepo import GitRepo


def test_start_use_restart_stop(models: GitRepo, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """start waits until it serves, status tells what it did, restart gives another, stop returns when it has gone."""
    monkeypatch.setenv("THETA_DAEMON", "never")
    environment = {"THETA_DAEMON": "auto", "CI": "1", "THETA_IDLE_SECONDS": "60"}
    assert theta(models, "daemon", "status").returncode == 1
    assert "serving" in ok(models, "daemon", "start", env=environment)
    assert "serving" in ok(models, "daemon", "start", env=environment)
    [one] = daemons(THETA_RUNTIME_DIR=str(runtime_dir))
    models.write("a.m", model().bytes())
    models("add", "a.m", env=environment)
    [report] = ok_json(models, "daemon", "status", "--json")
    assert report["pid"] == one.pid
    assert report["current"]
    assert report["sessions_served"] >= 1
    text = ok(models, "daemon", "status")
    assert str(one.pid) in text
    assert "tensor_cache" in text
    assert "serving" in ok(models, "daemon", "restart", env=environment)
    [other] = daemons(THETA_RUNTIME_DIR=str(runtime_dir))
    assert other.pid != one.pid
    assert ok(models, "daemon", "logs")
    assert "stopped 1" in ok(models, "daemon", "stop")
    assert daemons(THETA_RUNTIME_DIR=str(runtime_dir)) == []
    assert "no daemon" in ok(models, "daemon", "stop")
    assert ok(models, "daemon", "logs")
    assert os.environ["THETA_DAEMON"] == "never"
