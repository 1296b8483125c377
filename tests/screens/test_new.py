"""New run: what its keys do, and what is said while one types."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from textual.events import Key, Paste
from textual.pilot import Pilot
from textual.widgets import OptionList

from swarm.api import planning, preview
from swarm.core.estimates import Estimate
from swarm.core.outlook import Fit
from swarm.core.ticks import failed, ok, warning
from tui.app import SwarmApp
from tui.commands import KEYS, Place, key_names
from tui.messages import Answered, CommandEnded
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.new import FindOut, LookAhead, MakeRun, NewScreen, OpenForm
from tui.screens.run import RunScreen
from tui.view_new import Draft
from tui.widgets.form import Form
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words

SIZE = (120, 36)
OPENING = planning.Opening(tasks=planning.opening().tasks, mailbox="/mnt/share/swarm")
GIB = 1 << 30


def seen(**more: Any) -> preview.Preview:
    """A preview in which all is well, but for other machines."""
    good = preview.Preview(
        location="/mnt/share/swarm",
        fits=(
            Fit(name="studio", itself=True, ticks=(ok("framework", "charlm, with torch"), ok("memory", "38.0 GB free"))),
            Fit(name="mbp", itself=False, ticks=(ok("memory", "21.5 GB"), ok("device", "mps Apple M3 Pro"))),
            Fit(
                name="linux-3090",
                itself=False,
                ticks=(ok("memory", "25.8 GB"), warning("share", "has not opened this mailbox", "say where it is mounted")),
            ),
            Fit(
                name="air",
                itself=False,
                ticks=(failed("version", "its swarm writes format 3, this one 1", "upgrade swarm on this machine"),),
            ),
        ),
        memory_bytes=int(1.4 * GIB),
        parameters=10_834_944,
        estimate=Estimate(
            parameters=10_834_944,
            fragments=4,
            up_bytes=2_754_752,
            down_bytes=11_011_172,
            close_bytes=27_531_848,
            disk_bytes=206_434_256,
            up_s=0.34,
            down_s=0.6,
            train_s=61.0,
            close_s=1.9,
        ),
        link=preview.Link(write_bytes_per_s=8.1e6, read_bytes_per_s=18.2e6),
        pace=preview.Pace(run="charlm-brave-otter", unit_s=0.61),
    )
    return msgspec.structs.replace(good, **more)


@pytest.fixture
def quiet(fixed: SimpleNamespace) -> Any:
    return fixed.home_shown(fixed.home(), sightings=fixed.sightings())


def words(app: SwarmApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Words).content)


def drawn(app: SwarmApp, selector: str) -> str:
    pane = app.screen.query_one(selector)
    return "\n".join(pane.render_line(y).text.rstrip() for y in range(pane.scrollable_content_region.height))


def flat(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def asked(app: SwarmApp, kind: type) -> list[Any]:
    return [what for verb, what in app.feed.asked if verb == "ask" and isinstance(what, kind)]


def the_form(app: SwarmApp) -> Form:
    return app.screen.query_one("#form", Form)


async def opened(pilot: Pilot[None], app: SwarmApp, opening: planning.Opening = OPENING) -> NewScreen:
    await pilot.press("n")
    screen = app.screen
    assert isinstance(screen, NewScreen)
    app.feed.tell(Answered(asked(app, OpenForm)[-1], opening))
    await pilot.pause()
    return screen


async def looked(pilot: Pilot[None], app: SwarmApp, found: preview.Preview | None = None) -> None:
    """The feed answers what is asked of the draft as it stands."""
    screen = app.screen
    assert isinstance(screen, NewScreen)
    screen._look()
    app.feed.tell(Answered(asked(app, LookAhead)[-1], seen() if found is None else found))
    await pilot.pause()


async def typed(pilot: Pilot[None], app: SwarmApp, key: str, value: str) -> None:
    the_form(app).go(key)
    the_form(app).post_message(Paste(value))  # one message, and not one a letter: `test_keys_edit_the_text` presses keys
    await pilot.pause()


async def test_n_opens_the_form_and_esc_leaves_it_with_what_was_typed(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        assert "n opens the form of a new run" in words(app, "#empty")
        await opened(pilot, app)
        await typed(pilot, app, "run.rounds", "40")
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        screen = await opened(pilot, app)
        assert screen.draft.texts == {"run.rounds": "40"}


async def test_fields_come_from_the_specs_and_the_task_each_with_help_range_and_default(
    fixed: SimpleNamespace, quiet: Any
) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        assert "sync every          100" in drawn(app, "#form")
        assert "size                tiny" in drawn(app, "#form")
        the_form(app).go("spec.outer_lr")
        await pilot.pause()
        assert words(app, "#help") == "Learning rate of the outer Nesterov step  [> 0; default 0.7]"
        the_form(app).go("run.eval_every")
        await pilot.pause()
        assert words(app, "#help") == "Turns through all fragments per evaluation; 0: none  [>= 0; default 1]"
        the_form(app).go("task")
        await pilot.press("right")
        await pilot.pause()
        assert screen.draft.texts == {"task": "lenet5"}
        assert "model               lenet5" in drawn(app, "#form")
        the_form(app).go("method")
        await pilot.press("right", "right")
        await pilot.pause()
        assert screen.draft.method == "mlx-lm"
        shown = drawn(app, "#form")
        assert "learning rate       1e-05" in shown
        assert "model               needed" in shown
        await pilot.press("right")  # and the first again, as it was
        await pilot.pause()
        assert screen.draft.texts == {"task": "lenet5"}


async def test_a_painting_between_a_key_and_its_message_takes_nothing_back(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        form = the_form(app)
        form.go("run.name")
        for letter in "warm":
            form.on_key(Key(letter, letter))
        screen._paint()  # an answer of the feed, which knows of no letter yet
        for letter in "-hawk":
            form.on_key(Key(letter, letter))
        await pilot.pause()
        assert screen.draft.texts == {"run.name": "warm-hawk"}
        await pilot.press("ctrl+u")
        await pilot.pause()
        assert screen.draft.texts == {}, "the caret stood at the end"


async def test_a_bad_value_is_named_beside_its_field_and_keeps_it_from_starting(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        await looked(pilot, app)
        assert screen.reason == ""
        assert "^s makes it, and trains on this machine" in words(app, "#outlook")
        await typed(pilot, app, "spec.fragments", "200")
        assert "✗ must be <= sync_every" in drawn(app, "#form")
        assert "✗ fragments: must be <= sync_every (100), got 200" in words(app, "#help")
        assert "not yet: fragments: must be" in words(app, "#outlook")
        await pilot.press("ctrl+s")
        the_form(app).go("start")
        await pilot.press("enter")
        assert asked(app, MakeRun) == []
        assert "[ Start the run ]  fragments: must be" in drawn(app, "#form")
        the_form(app).go("spec.fragments")
        await pilot.press("backspace", "backspace")
        await pilot.pause()
        assert screen.draft.texts == {"spec.fragments": "2"}
        assert "not yet: it is being looked at" in words(app, "#outlook")  # who can take part is asked anew
        await looked(pilot, app)
        assert screen.reason == ""


async def test_an_advanced_field_that_is_wrong_is_not_hidden(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        assert "outer momentum" not in drawn(app, "#form")
        await pilot.press("f2")
        await typed(pilot, app, "spec.outer_momentum", "7")
        await pilot.press("f2")
        await pilot.pause()
        assert "21 more, 1 set, 1 wrong" in drawn(app, "#form")
        assert "outer momentum      7" in drawn(app, "#form")
        assert list(screen.problems) == ["spec.outer_momentum"]
        the_form(app).go("fold.how")
        await pilot.press("enter")
        await pilot.pause()
        assert screen.draft.open == {"how"}
        await pilot.press("space")
        await pilot.pause()
        assert screen.draft.open == frozenset()
        the_form(app).first()  # in sight
        row = next(n for n, each in enumerate(the_form(app)._rows) if each.key == "fold.what")
        await pilot.click(the_form(app), offset=(6, row + 1))
        await pilot.pause()
        assert screen.draft.open == {"what"}


async def test_the_mouse_goes_to_a_field_and_into_its_text(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        await typed(pilot, app, "spec.sync_every", "500")
        row = next(n for n, each in enumerate(the_form(app)._rows) if each.key == "spec.sync_every") + 1
        await pilot.click(the_form(app), offset=(1 + 2 + 19 + 1 + 1, row))  # border, mark, label, blank: after the 5
        await pilot.press("1")
        await pilot.pause()
        assert screen.draft.texts == {"spec.sync_every": "5100"}
        row = next(n for n, each in enumerate(the_form(app)._rows) if each.key == "method") + 1
        await pilot.click(the_form(app), offset=(30, row))
        assert screen.draft.method == "diloco"
        await pilot.click(the_form(app), offset=(30, row))
        await pilot.pause()
        assert screen.draft.method == "fedavg"


async def test_keys_edit_the_text(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        the_form(app).go("here.data")
        await pilot.press("~", "slash", "q", "space", "f", "i", "question_mark")
        await pilot.pause()
        assert screen.draft.texts == {"here.data": "~/q fi?"}  # no letter is a command here
        await pilot.press("home", "delete", "x", "end", "left", "backspace", "right", "z")
        await pilot.pause()
        assert screen.draft.texts == {"here.data": "x/q f?z"}
        await pilot.press("ctrl+w")
        await pilot.pause()
        assert screen.draft.texts == {"here.data": "x/q"}
        await pilot.press("ctrl+u", "a", "enter")
        await pilot.pause()
        assert screen.draft.texts == {"here.data": "a"}
        assert the_form(app).cursor == "fold.what"
        the_form(app).go("here.data")
        await pilot.press("ctrl+u")
        the_form(app).post_message(Paste("/data\n\x1b[31mred\u202e"))
        await pilot.pause()
        assert screen.draft.texts == {"here.data": "/data red"}


async def test_the_command_line_is_shown_live_and_a_key_copies_it(
    fixed: SimpleNamespace, quiet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fixed.app_over(quiet)
    copied: list[str] = []
    monkeypatch.setattr(app, "copy", copied.append)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        assert words(app, "#command") == "$ swarm start diloco --detach"
        await typed(pilot, app, "spec.sync_every", "50")
        await typed(pilot, app, "here.data", "my file")
        await pilot.press("ctrl+y")
        assert copied == ["swarm start diloco --data 'my file' --sync-every 50 --detach"]
        assert words(app, "#command") == f"$ {copied[0]}"
        assert shlex.split(copied[0])[4] == "my file"
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert screen.draft.texts == {}
        assert "sync every          100" in drawn(app, "#form")
        the_form(app).go("join")
        await pilot.press("space", "right")  # no, and the default again
        await pilot.press("left")
        await pilot.pause()
        assert words(app, "#command") == "$ swarm start diloco --no-join"
        the_form(app).last()
        await pilot.pause()
        assert "[ Make the run ]" in drawn(app, "#form")


async def test_it_opens_with_what_was_typed_the_last_time(fixed: SimpleNamespace, quiet: Any) -> None:
    values = {
        "fedavg": {"spec.clients": "20", "spec.per_round": "no number", "gone": "1", "option.norm": "batch"},
        "diloco": {"task": "no such task", "run.rounds": "7"},
        "nonsense": {"a": "b"},
    }
    opening = msgspec.structs.replace(OPENING, method="fedavg", values=values)
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app, opening)
        assert screen.draft.method == "fedavg"
        assert screen.draft.texts == {"spec.clients": "20", "option.norm": "batch"}
        assert screen.draft.values["diloco"] == {"run.rounds": "7"}
        assert screen.draft.values["mlx-lm"] == {}


async def test_the_preview_names_who_can_take_part_who_cannot_and_why(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, app)
        await looked(pilot, app)
        said = flat(drawn(app, "#preview"))
        assert "✓ studio* charlm, with torch, 38.0 GB free" in said
        assert "✓ mbp" in said
        assert "⚠ linux-3090" in said
        assert "⚠ share: has not opened this mailbox" in said
        assert "→ say where it is mounted" in said
        assert "✗ air" in said
        assert "✗ version: its swarm writes format 3" in said
        assert "10.8M that are trained" in said
        assert "2.75 MB up, 11.0 MB down a round" in said
        assert "as in charlm-brave-otter" in said
        assert "takes 8.10 MB/s" in said
        assert asked(app, FindOut) == []
        unknown = seen(measured=False, parameters=None, estimate=None, link=None, pace=None)
        await looked(pilot, app, unknown)
        await looked(pilot, app, unknown)
        assert len(asked(app, FindOut)) == 1  # one at a time
        assert "unknown yet: the model is being built to be measured" in flat(drawn(app, "#preview"))
        before = len(asked(app, LookAhead))
        app.feed.tell(Answered(asked(app, FindOut)[0]))
        await pilot.pause()
        assert len(asked(app, LookAhead)) == before + 1
        await pilot.press("f5")
        assert asked(app, FindOut)[-1].anew


async def test_an_answer_on_an_older_draft_is_not_shown(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        older = asked(app, LookAhead)[-1]
        await typed(pilot, app, "run.rounds", "3")
        app.feed.tell(Answered(older, seen()))
        await pilot.pause()
        assert "it is being looked at" in screen.reason
        assert "looking" in drawn(app, "#preview")
        await looked(pilot, app, seen(problems={"here.data": "cannot read /x: No such file or directory"}))
        assert "✗ cannot read /x" in drawn(app, "#form")
        assert "data: cannot read /x" in screen.reason
        await typed(pilot, app, "here.data", "y")
        assert "cannot read" not in drawn(app, "#form")  # that was said of another path


async def test_what_cannot_be_measured_is_not_tried_again_at_once(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        for _ in range(3):
            await looked(pilot, app, seen(measured=False))
            app.feed.tell(Answered(asked(app, FindOut)[-1], None, "the mailbox is away"))
            await pilot.pause()
        assert len(asked(app, FindOut)) == 1
        screen._look_again()  # the timer's
        await looked(pilot, app, seen(measured=False))
        assert len(asked(app, FindOut)) == 2
        await typed(pilot, app, "run.rounds", "3")
        await looked(pilot, app, seen(measured=False))
        app.feed.tell(Answered(asked(app, FindOut)[-1], None))
        await pilot.pause()
        await looked(pilot, app, seen(measured=False))
        assert len(asked(app, FindOut)) == 3


async def test_ctrl_s_makes_the_run_and_shows_it(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        await typed(pilot, app, "run.name", "my-run")
        await looked(pilot, app)
        await pilot.press("ctrl+s")
        [question] = asked(app, MakeRun)
        assert question.draft == screen.draft
        assert "the run is being made" in words(app, "#outlook")
        await pilot.press("ctrl+s")  # once is enough
        assert len(asked(app, MakeRun)) == 1
        doing = "building charlm for a new run"
        app.feed.tell(fixed.home_shown(fixed.home(jobs=(fixed.job(state="starting", doing=doing),))))
        await pilot.pause()
        assert f"the run is being made: {doing}" in words(app, "#outlook")
        begun = planning.Begun(location=fixed.SHARE, run=fixed.AT.run, name="my-run", joins=True)
        app.feed.tell(Answered(question, begun))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked[-1] == ("show", fixed.AT)
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        assert (await opened(pilot, app)).draft.texts == {}  # the next run has another name


async def test_what_is_answered_under_a_dialog_shows_when_that_is_gone(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        app.feed.tell(Answered(asked(app, LookAhead)[-1], seen()))
        await pilot.pause()
        assert isinstance(app.screen, Page)
        await pilot.press("escape")
        assert screen.reason == ""
        assert "✓ mbp" in drawn(app, "#preview")
        await pilot.press("ctrl+s", "question_mark")
        assert isinstance(app.screen, Page)
        begun = planning.Begun(location=fixed.SHARE, run=fixed.AT.run, name="my-run", joins=True)
        app.feed.tell(Answered(asked(app, MakeRun)[0], begun))
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)


async def test_what_fails_is_said_in_a_line_and_nothing_typed_is_lost(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        await typed(pilot, app, "run.name", "taken")
        await looked(pilot, app)
        the_form(app).go("start")
        await pilot.press("enter")
        problem = "a run 'taken' exists in /mnt/share/swarm: choose another name"
        app.feed.tell(Answered(asked(app, MakeRun)[0], None, problem))
        await pilot.pause()
        assert words(app, "#outlook") == f"✗ it was not made: {problem}"
        assert screen.draft.texts == {"run.name": "taken"}
        await pilot.press("ctrl+s")
        assert len(asked(app, MakeRun)) == 2
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        assert any("made all the same" in n.message for n in app._notifications)


async def test_f6_goes_to_the_preview_which_scrolls_and_there_letters_are_commands(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app)
        await looked(pilot, app)
        await pilot.press("f6")
        pane = app.screen.query_one("#preview", Lines)
        assert pane.has_focus
        await pilot.press("down", "pagedown", "up")
        assert pane.scroll_offset.y > 0
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        await pilot.press("escape", "pageup", "f6")
        assert the_form(app).has_focus
        the_form(app).first()
        await pilot.press("down")
        assert the_form(app).cursor == "task"
        await pilot.press("tab", "tab", "shift+tab")
        assert the_form(app).cursor == "option.size"
        await pilot.press("pagedown", "pagedown", "pageup", "up")
        assert the_form(app).cursor not in ("method", "task", "start")
        assert f"▸ {the_form(app).row.label[:10]}" in drawn(app, "#form")  # in sight
        the_form(app).first()
        assert the_form(app).cursor == "method"
        assert "What is trained" in drawn(app, "#form")


async def test_keys_are_in_palette_and_footer_and_type_nothing_from_there(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=(150, 36)) as pilot:
        screen = await opened(pilot, app)
        await looked(pilot, app)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        footer = {item.key for _, item in app.screen.query_one(KeyBar).items}
        for key in KEYS[Place.NEW]:
            assert f"{key.label} ({key_names(key)})" in titles
            assert not key.footer or key.keys.split(",")[0] in footer
        the_form(app).go("run.name")
        x = next(x for x, item in screen.query_one(KeyBar).items if item.key == "question_mark")
        await pilot.click(KeyBar, offset=(x + 2, 0))
        await pilot.pause()
        assert isinstance(app.screen, Page)
        await pilot.press("escape", "ctrl+p", *"quit")
        found = app.screen.query_one(OptionList)
        for _ in range(1000):  # the palette searches in a task of its own
            if found.option_count:
                break
            await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert screen.draft.texts == {}
        assert app._exit


async def test_what_peers_wrote_is_harmless_here_too(fixed: SimpleNamespace, quiet: Any) -> None:
    nasty = "[red]x[/red]\x1b[31m\u202e"
    fit = Fit(name=nasty, itself=False, ticks=(failed("memory", nasty, nasty),))
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, app)
        await looked(pilot, app, seen(fits=(fit,), problems={"run.name": nasty, "": nasty}))
        whole = drawn(app, "#preview") + drawn(app, "#form") + words(app, "#outlook")
        assert "\x1b" not in whole
        assert "\u202e" not in whole
        assert "[red]x[/red]" in whole


async def test_what_is_typed_right_after_a_step_goes_into_the_next_field(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, app)
        the_form(app).go("spec.sync_every")
        height = the_form(app).size.height
        for key in ("5", "0", "down", "4", "tab", "2", "shift+tab", "8"):  # none waits for the one before
            app.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        await pilot.pause()
        assert screen.draft.texts == {"spec.sync_every": "50", "spec.fragments": "48", "spec.quorum_size": "2"}
        await typed(pilot, app, "here.data", "a/long/path/" * 30)
        assert words(app, "#command").endswith("…")
        assert the_form(app).size.height == height  # nothing moves while one types


async def test_a_form_that_cannot_open_says_why(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("n")
        app.feed.tell(Answered(asked(app, OpenForm)[-1], None, "the settings cannot be read"))
        await pilot.pause()
        assert "the settings cannot be read" in words(app, "#outlook")
        app.feed.tell(CommandEnded("check", "network"))  # another screen's
        await pilot.pause()
        assert isinstance(app.screen, NewScreen)


@pytest.mark.parametrize("size", [(50, 20), (20, 8)])
async def test_no_size_is_refused(fixed: SimpleNamespace, quiet: Any, size: tuple[int, int]) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=size) as pilot:
        screen = await opened(pilot, app)
        await looked(pilot, app)
        await typed(pilot, app, "run.rounds", "x")
        assert screen.problems == {"run.rounds": "must be a whole number >= 1"}
        assert "rounds" in drawn(app, "#form")


def test_another_task_starts_with_its_own_defaults() -> None:
    draft = Draft().opened(OPENING).put("option.batch_size", "3").put("task", "lenet5")
    assert draft.texts == {"task": "lenet5"}
    assert draft.put("task", "charlm").texts == {}
