"""Commands that other distributions publish, found when they are asked for and not before."""

import sys

import pytest
from click.testing import CliRunner

from backbay.cli import main, plugins
from backbay.registry import Environment, Registry
from backbay.registry.distributions import scan
from backbay.registry.policy import Layer, Policy


@pytest.fixture
def publish(install, tmp_path, monkeypatch):
    """Install a distribution that publishes commands, beside what is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "default_registry", Registry(Environment(installed=scan([]))))

    def publish(source: str, *lines: str, name: str = "acme", policy: Policy | None = None):
        install(name, "2.0", "[backbay.commands]\n" + "\n".join(lines) + "\n")
        (tmp_path / f"{name}_commands.py").write_text(source)
        environment = Environment(installed=scan([str(tmp_path)]))
        monkeypatch.setattr(plugins, "default_registry", Registry(environment, standing=policy))

    yield publish
    for name in ("acme_commands", "other_commands"):
        sys.modules.pop(name, None)


HELLO = """
import click

@click.command("hello")
@click.argument("who")
def hello(who):
    \"\"\"Greet WHO.\"\"\"
    click.echo(f"hello {who}")
"""


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


def test_a_published_command_runs_and_stands_in_the_help(publish):
    publish(HELLO, "hello = acme_commands:hello")
    assert run("hello", "you").output == "hello you\n"
    assert "Greet WHO." in run("--help").output


@pytest.mark.usefixtures("publish")
def test_conform_says_where_it_is_where_its_distribution_is_missing():
    done = run("conform", "inductor")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "backbay: the command conform is in backbay-conformance, which is not installed: "
        "pip install backbay-conformance\n"
    )
    assert "pip install backbay-conformance" in " ".join(run("--help").output.split())


@pytest.mark.usefixtures("publish")
def test_a_command_that_nobody_has_is_a_usage_error():
    done = run("nonsense")
    assert done.exit_code == 2
    assert "No such command 'nonsense'" in done.stderr


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("raise ValueError('one\\ntwo')", "x = acme_commands:x", "broken: ValueError: one: report"),
        ("raise SystemExit(3)", "x = acme_commands:x", "broken: SystemExit: 3: report"),
        ("import nobody_has_this", "x = acme_commands:x", "No module named 'nobody_has_this'"),
        ("", "x = acme_commands:x", "acme_commands has no attribute 'x'"),
        ("x = print", "x = acme_commands:x", "is no click command, but builtin_function"),
        ("", "x = not a reference", "is not of the form module:attribute"),
    ],
)
def test_a_broken_command_is_one_line_and_the_others_work(publish, source, line, said):
    publish(source, line)
    done = run("x")
    assert (done.exit_code, done.stdout) == (2, "")
    (text,) = done.stderr.splitlines()
    assert text.startswith("backbay: the command x of acme 2.0 is broken: ")
    assert said in text
    help_ = run("--help")
    assert help_.exit_code == 0
    assert "is broken" in " ".join(help_.output.split())
    assert run("list").exit_code == 0


def test_a_built_in_command_keeps_its_name_and_the_help_says_so(publish):
    publish("raise AssertionError", "list = acme_commands:hello")
    assert run("list").exit_code == 0
    said = " ".join(run("--help").output.split())
    assert "list published by acme 2.0; the built-in command has the name" in said


def test_two_that_publish_one_name_are_told_and_neither_runs(publish):
    publish(HELLO, "hello = acme_commands:hello")
    publish(HELLO, "hello = other_commands:hello", name="other")
    done = run("hello", "you")
    assert done.exit_code == 2
    assert "is published by acme 2.0 and other 2.0: uninstall all but one" in done.stderr.replace(
        "other 2.0 and acme 2.0", "acme 2.0 and other 2.0"
    )


def test_no_code_of_a_blocked_distribution_is_run(publish):
    blocked = Policy((Layer(source="ci.toml", block=frozenset({"acme"})),))
    publish("raise AssertionError", "x = acme_commands:x", policy=blocked)
    done = run("x")
    assert done.exit_code == 2
    assert "acme is blocked by ci.toml" in done.stderr


def test_a_built_in_command_looks_at_no_entry_points(monkeypatch):
    monkeypatch.setattr(plugins, "published", lambda: pytest.fail("entry points were read"))
    assert run("list").exit_code == 0


def test_conform_is_published_here():
    (found,) = plugins.published()["conform"]
    assert plugins.load("conform").name == "conform"
    assert found.value.endswith(":command")
