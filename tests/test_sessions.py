"""Conversations on the disk: what is written is read again, what is broken is said, and what goes on goes on
as if it had never stopped."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_edits import as_qwen3, windowed
from talking import QUESTIONS, load, talk_over

from specli.chat.attached import Attached
from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue
from specli.chat.keeper import Keeper
from specli.chat.sessions import Session, Shelf, cache_of, checked_name
from specli.cli.main import main
from specli.core.decoding import sync
from specli.engine.context import Context, ContextParams, Rollback
from specli.engine.model import Model, ModelParams
from specli.engine.saved import give, prune, read_state, take, unsavable, write_state
from specli.errors import SessionError, SpecliError
from specli.ui import terminal
from specli.ui.listing import age
from specli.ui.repl import Chat

TALK = Session(
    (
        Message("user", "Was ist das?\nEin Täst 🙂", files=(Attached("a.py", "x = 1\n```\n"),)),
        Message("assistant", "Ein Test.", (5, 6, 7)),
        Message("user", "Und nun?"),
    ),
    "/models/m.gguf",
    "abc",
    system="Kurz.",
    answers=2,
)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "sessions")


# -- files ------------------------------------------------------------------------------------------


def test_a_session_is_read_as_it_was_written(shelf: Shelf) -> None:
    shelf.write("one", TALK)
    assert shelf.read("one") == TALK
    assert TALK.title == "Was ist das?" and TALK.turns == 2
    path = shelf.folder / "one.json"
    assert "Täst" in path.read_text("utf-8")  # for people, not escaped
    assert [p.name for p in shelf.folder.iterdir()] == ["one.json"]
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(shelf.folder.stat().st_mode) == 0o700


def test_an_answer_of_no_tokens_is_read_as_one(shelf: Shelf) -> None:
    dialogue = Dialogue()
    dialogue.ask("hi")
    dialogue.answer(Message("assistant", "", ()))
    shelf.write("quiet", Session.of(dialogue, "m", "f", False))
    assert shelf.read("quiet").dialogue().messages == dialogue.messages


def test_half_a_character_does_not_stop_saving(shelf: Shelf) -> None:
    shelf.write("odd", replace(TALK, messages=(Message("user", "a \ud83d b"),)))
    assert shelf.read("odd").messages[0].text == "a ? b"


@pytest.mark.parametrize("name", ["a", "2026-11-30-120000", "mein_Test", "日本", "é" * 64])
def test_names(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "a/b", "a\\b", "/etc/passwd", "a.json", "a b", "-rf", "_a", "con", "COM1", "nul", "a\n", "a\0",
     "a:b", "a*", "é" * 65, "日" * 68, "🙂"],
)  # fmt: skip
def test_names_that_leave_the_folder_or_are_no_files(name: str, shelf: Shelf) -> None:
    for use in (checked_name, shelf.read, shelf.lock):
        with pytest.raises(SessionError, match="cannot name a session") as caught:
            use(name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    with pytest.raises(SessionError):
        shelf.write(name, TALK)
    assert not list(shelf.folder.parent.rglob("*.json"))


GOOD = json.loads(
    '{"specli-session": 1, "model": "m", "fingerprint": "f", "system": null, "raw": false, "named": false,'
    ' "first": 0, "answers": 1, "messages": [{"role": "user", "text": "hi"}]}'
)
BROKEN = {
    "empty": b"",
    "binary": bytes(range(256)),
    "half": json.dumps(GOOD).encode()[:-20],
    "list": b"[]",
    "deep": b"[" * 100_000,
    "other": b'{"a": 1}',
    "newer": json.dumps({**GOOD, "specli-session": 2}).encode(),
    "format": json.dumps({**GOOD, "specli-session": True}).encode(),
    "no-model": json.dumps({k: v for k, v in GOOD.items() if k != "model"}).encode(),
    "first": json.dumps({**GOOD, "first": 2}).encode(),
    "odd-first": json.dumps({**GOOD, "first": 1}).encode(),
    "answers": json.dumps({**GOOD, "answers": -1}).encode(),
    "digits": b'{"specli-session": ' + b"9" * 5000 + b"}",
    "messages": json.dumps({**GOOD, "messages": {}}).encode(),
    "message": json.dumps({**GOOD, "messages": ["hi"]}).encode(),
    "role": json.dumps({**GOOD, "messages": [{"role": "root", "text": "hi"}]}).encode(),
    "system": json.dumps({**GOOD, "messages": [{"role": "system", "text": "hi"}]}).encode(),
    "turns": json.dumps({**GOOD, "messages": [{"role": "user", "text": "hi"}] * 2}).encode(),
    "tokens": json.dumps({**GOOD, "messages": [{"role": "user", "text": "hi", "tokens": [1]}]}).encode(),
    "file": json.dumps({**GOOD, "messages": [{"role": "user", "text": "hi", "files": [1]}]}).encode(),
    "float": json.dumps(
        {**GOOD, "messages": [*GOOD["messages"], {"role": "assistant", "text": "", "tokens": [1.5]}]}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_session_is_one_line_and_hides_no_other(name: str, shelf: Shelf) -> None:
    shelf.write("good", TALK)
    (shelf.folder / f"{name}.json").write_bytes(BROKEN[name])
    with pytest.raises(SessionError) as caught:
        shelf.read(name)
    assert f"{name}.json: no session in it: " in str(caught.value) and "\n" not in str(caught.value)
    listed = {each.name: each for each in shelf.listing(20)}
    assert listed["good"].session == TALK and listed[name].session is None and listed[name].problem
    assert shelf.newest() == "good"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_by_a_sessions_name_does_not_block(shelf: Shelf) -> None:
    shelf.write("good", TALK)
    os.mkfifo(shelf.folder / "pipe.json")
    (shelf.folder / "folder.json").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(SessionError, match="no session in it"):
            shelf.read(name)
    assert shelf.newest() == "good"


def test_the_nearest_name_is_offered(shelf: Shelf) -> None:
    with pytest.raises(SessionError, match="none is saved yet"):
        shelf.read("thesis")
    shelf.write("thesis", TALK)
    with pytest.raises(SessionError, match="did you mean thesis"):
        shelf.read("tesis")


# -- one writer -------------------------------------------------------------------------------------


def test_one_writer_at_a_time(shelf: Shelf) -> None:
    shelf.write("talk", TALK)
    first, second = Keeper(shelf), Keeper(shelf)
    assert first.resume("talk") == TALK and first.name == "talk"
    assert second.resume("talk") == TALK and second.name is None  # read, but not to be written
    second.save(replace(TALK, system="other"))
    assert second.name not in (None, "talk") and shelf.read("talk") == TALK
    with pytest.raises(SessionError, match="there is a session talk already"):
        second.save_as("talk", TALK)
    first.leave()
    third = Keeper(shelf)
    third.resume("talk")
    assert third.name == "talk"
    reader = Keeper(shelf, saving=False)  # needs no leave to read
    assert reader.resume("talk") == TALK and reader.name is None
    third.leave()
    second.leave()
    assert not list(shelf.folder.glob("*.lock"))


def test_new_conversations_of_one_second_have_names_of_their_own(shelf: Shelf) -> None:
    keepers = [Keeper(shelf) for _ in range(5)]
    for keeper in keepers:
        keeper.save(TALK)
    assert len({keeper.name for keeper in keepers}) == 5 == len(shelf.names())


def test_a_chosen_name_replaces_an_automatic_one_only(shelf: Shelf) -> None:
    keeper = Keeper(shelf)
    keeper.save(TALK)
    keeper.save_as("draft", TALK)
    assert shelf.names() == ["draft"]
    keeper.save_as("final", TALK)
    assert sorted(shelf.names()) == ["draft", "final"] and keeper.name == "final"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a folder that cannot be written")
def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir(mode=0o500)
    with pytest.raises(SpecliError) as caught:
        Keeper(Shelf(tmp_path / "ro" / "sessions")).save(TALK)
    assert "\n" not in str(caught.value)


def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("")
    with pytest.raises(SessionError):
        Keeper(Shelf(tmp_path / "sessions")).save(TALK)


# -- what is left out -------------------------------------------------------------------------------


def _words(messages: Sequence[Message]) -> list[int]:
    """A token for each letter."""
    return [0] * sum(len(m.content) for m in messages)


def _dialogue(turns: int, size: int) -> Dialogue:
    dialogue = Dialogue(system="s" * 10)
    for _ in range(turns):
        dialogue.ask("q" * size)
        dialogue.answer(Message("assistant", "a" * size, (0,) * size))
    return dialogue


def test_oldest_turns_are_left_out_at_a_turn_and_stay_in_the_session() -> None:
    dialogue = _dialogue(turns=9, size=10)
    dialogue.ask("q" * 10)
    assert dialogue.prompt(_words, 200 + 1 + 50, 50) == dialogue.prompt(_words, 10**6, 50)
    prompt = dialogue.prompt(_words, 200, 50)
    assert len(prompt.tokens) + 50 + 200 // 8 <= 200 and prompt.left_out == dialogue.first // 2 > 0
    assert dialogue.messages[dialogue.first].role == "user" and dialogue.turns == 10
    again = dialogue.prompt(_words, 200, 50)
    assert again.left_out == 0 and again.tokens == prompt.tokens  # said once, and stable for the cache
    restored = Session.of(dialogue, "m", "f", False).dialogue()
    assert restored.prompt(_words, 200, 50).tokens == prompt.tokens


def test_a_long_question_leaves_out_all_others_but_not_for_nothing() -> None:
    dialogue = _dialogue(turns=3, size=10)
    dialogue.ask("q" * 120)
    prompt = dialogue.prompt(_words, 180, 50)
    assert len(prompt.tokens) == 130 and prompt.left_out == 3
    dialogue = _dialogue(turns=3, size=10)
    dialogue.ask("q" * 160)  # no room for the whole answer, but for some of it
    assert len(dialogue.prompt(_words, 180, 50).tokens) == 170
    dialogue = _dialogue(turns=3, size=10)
    dialogue.ask("q" * 300)
    assert len(dialogue.prompt(_words, 180, 50).tokens) == 310 and dialogue.first == 0


def test_taking_back_and_asking_again() -> None:
    dialogue = _dialogue(turns=2, size=3)
    dialogue.files.append(Attached("n.txt", "text"))
    dialogue.ask("third")
    assert dialogue.unanswered and not dialogue.files
    assert dialogue.messages[-1].content == "File: n.txt\n```\ntext\n```\n\nthird"
    dialogue.ask("instead")  # one that was never answered makes room
    assert [m.role for m in dialogue.messages] == ["user", "assistant"] * 2 + ["user"]
    question = dialogue.take_back_question()
    assert question is not None and question.text == "instead" and not dialogue.unanswered
    assert dialogue.take_back_answer() and dialogue.unanswered
    dialogue.first = 2
    assert dialogue.take_back_question() is not None and dialogue.first == 0
    assert dialogue.take_back_question() is not None and dialogue.take_back_question() is None
    assert not dialogue.take_back_answer()


# -- caches -----------------------------------------------------------------------------------------


def _random(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 1200) for _ in range(n)]


def _spoken(context: Context, width: int = 4) -> list[int]:
    """A prompt, and an answer in decodes of fixed width; what the cache then holds."""
    tokens = _random(420, 1)
    sync(context, tokens[:330], 128)
    rng = random.Random(2)
    while len(context.tokens) < 410:
        at = len(context.tokens)
        keep = rng.randint(1, width)
        context.decode([*tokens[at : at + keep], *_random(width - keep, at)], rows=width)
        context.rewind(at + keep)
    return list(context.tokens)


@pytest.mark.parametrize("kind", ["cut", "snapshot", "checkpoint"])
def test_what_follows_a_restored_cache_has_the_same_bits(
    kind: str, tiny_draft: Path, tiny_hybrid: Path, tmp_path: Path
) -> None:
    path = tiny_draft if kind == "cut" else tiny_hybrid
    params = ContextParams(
        n_ctx=1024, n_batch=128, n_ubatch=128, max_rows=4, snapshots=3 if kind == "snapshot" else 0
    )
    with Model(path, ModelParams(0, use_extra_bufts=False)) as model, Context(model, params) as going_on:
        assert going_on.rollback is Rollback(kind)
        held = _spoken(going_on)
        write_state(tmp_path / "x.cache", take(going_on), {"model": "m"})
        with Context(model, params) as resumed:
            state = read_state(tmp_path / "x.cache", {"model": "m"})
            assert state is not None and give(resumed, state) and list(resumed.tokens) == held
            resumed.check()
            for cut in (len(held), 300, 340):  # the next turn, and turns taken back
                for seed in (3, 4):
                    rows = []
                    for context in (going_on, resumed):
                        sync(context, [*held[:cut], *_random(150, seed)], 128)
                        rows.append(context.decode(_random(4, 5), rows=4).copy())
                        context.rewind(len(context.tokens) - 3)
                    assert np.array_equal(*rows), (cut, seed)


def test_a_cache_that_does_not_fit_or_was_damaged_is_not_taken(tiny_draft: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.cache"
    key = {"model": "m", "library": "l"}
    assert read_state(path, key) is None
    params = ContextParams(n_ctx=512, n_batch=128, n_ubatch=128, max_rows=4)
    with Model(tiny_draft, ModelParams(0, use_extra_bufts=False)) as model, Context(model, params) as context:
        sync(context, _random(60, 1), 128)
        state = take(context)
        write_state(path, state, key)
        whole = path.read_bytes()
        with pytest.raises(SessionError, match="another library"):
            read_state(path, {**key, "library": "newer"})
        damaged = [whole[:n] for n in (0, 10, 40, 300, len(whole) - 1)] + [whole + b"x"]
        damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (600, len(whole) - 1)]
        for part, other in (
            (b"specli-cache 1", b"specli-cache 2"),
            (b'"sizes"', b'"sises"'),
            (b'"sizes": [240', b'"sizes": [241'),
            (b'"sizes": [240', b'"sizes": [-40'),
            (b'"sizes": [240', b'"sizes": ["a"'),
            (b'"checkpoints": []', b'"checkpoints": [1]'),
            (b'"rows": null', b'"rows": [0, 0]'),
            (b'"follower": ""', b'"follower": "x"'),
        ):
            assert part in whole
            damaged.append(whole.replace(part, other))
        for bad in damaged:
            path.write_bytes(bad)
            with pytest.raises(SessionError):
                read_state(path, key)
        # right in itself, but not for this context: the library says no, and the cache is empty, not wrong
        assert not give(context, replace(state, data=state.data[:-8])) and not context.tokens
        assert not give(context, replace(state, tokens=state.tokens[:-1])) and not context.tokens
        assert give(context, state) and list(context.tokens) == _random(60, 1)


def test_only_so_much_is_kept_on_the_disk(tmp_path: Path) -> None:
    for i, name in enumerate("abcd"):
        (tmp_path / f"{name}.cache").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"{name}.cache", (1000 + i, 1000 + i))
    (tmp_path / ".e.cache.1.tmp").write_bytes(b"left by a writer that was killed")
    os.utime(tmp_path / ".e.cache.1.tmp", (1000, 1000))
    (tmp_path / ".f.cache.1.tmp").write_bytes(b"being written")
    prune(tmp_path, "abcd", 250)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".f.cache.1.tmp", "c.cache", "d.cache"]
    prune(tmp_path, "c", 250)  # the conversation d is gone, so nobody can ask for its cache
    assert sorted(p.name for p in tmp_path.iterdir()) == [".f.cache.1.tmp", "c.cache"]
    prune(tmp_path / "none", "", 250)


def test_a_sliding_window_is_decoded_again(tiny_draft: Path, tmp_path: Path) -> None:
    path = windowed(tiny_draft, tmp_path / "windowed.gguf", 32)
    params = ContextParams(n_ctx=512, n_batch=128, n_ubatch=128, max_rows=4)
    with Model(path, ModelParams(0, use_extra_bufts=False)) as model, Context(model, params) as context:
        assert "sliding window" in (unsavable(context) or "")


# -- a conversation ---------------------------------------------------------------------------------


def _answers(talk: Chat) -> list[tuple[int, ...]]:
    return [m.tokens or () for m in talk.dialogue.messages if m.role == "assistant"]


@pytest.mark.parametrize(("name", "tokens"), [("tiny_draft", 40), ("tiny_hybrid", 40), ("smol", 24)])
def test_exact_conversations_go_on_as_if_never_interrupted(
    name: str, tokens: int, shelf: Shelf, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    given = {"exact": True, "max_tokens": tokens, "ctx_size": 2048, "types": ("draft-self",)}
    with closing(load(path, **given)) as model:
        whole = talk_over(model, shelf)
        assert whole.run(QUESTIONS) == 0
    with closing(load(path, **given)) as model:
        assert talk_over(model, shelf).run(QUESTIONS[:3]) == 0
        name = shelf.newest() or ""
        assert name != whole.keeper.name
    with closing(load(path, **given)) as model:
        resumed = talk_over(model, shelf)
        resumed.resume(name)
        assert model.cached() > 50, resumed.screen.err.getvalue()  # type: ignore[attr-defined]
        assert resumed.run(QUESTIONS[3:]) == 0
        assert resumed.all[0].timing.prompt_tokens < 40  # nothing was decoded a second time
    assert _answers(resumed) == _answers(whole)
    assert all(_answers(whole))


@pytest.mark.parametrize("kind", ["heads", "eagle"])
def test_heads_draft_on_as_if_never_interrupted(
    kind: str, tiny_target: Path, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they drafted, and how much of it was accepted, shows what they stand on."""
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")
    given: dict[str, object] = {"exact": True, "max_tokens": 24, "fixed": True, "types": ("draft-mtp",)}
    path = tiny_target
    if kind == "eagle":
        path = as_qwen3(tiny_target, tmp_path / "target.gguf")
        given |= {"types": ("draft-eagle3",), "draft_model": str(tiny_target.parent / "tiny-eagle3.gguf")}
    with closing(load(path, **given)) as model:
        whole = talk_over(model, shelf)
        whole.run([*QUESTIONS[:4], "/undo", QUESTIONS[4]])
    with closing(load(path, **given)) as model:
        talk_over(model, shelf).run(QUESTIONS[:3])
        name = shelf.newest() or ""
    with closing(load(path, **given)) as model:
        resumed = talk_over(model, shelf)
        resumed.resume(name)
        assert model.cached() > 50
        resumed.run([QUESTIONS[3], "/undo", QUESTIONS[4]])
        assert [m.text for m in resumed.dialogue.messages] == [m.text for m in whole.dialogue.messages]
        for one, other in zip(resumed.all, whole.all[3:]):
            assert one.timing.prompt_tokens == other.timing.prompt_tokens < 60
            assert one.stats.by_method == other.stats.by_method and one.stats.accepted > 0
        assert take(model.generator.target).follower
    with closing(load(path, exact=True, max_tokens=24, types=("none",))) as model:
        plain = talk_over(model, shelf)
        plain.resume(name)  # the target's own part serves without the heads
        assert model.cached() > 50 or kind == "eagle", plain.screen.err.getvalue()  # type: ignore[attr-defined]


def test_sampled_conversations_go_on_with_the_seeds_they_would_have_had(
    tiny_draft: Path, shelf: Shelf
) -> None:
    given = {"exact": True, "max_tokens": 20, "seed": 7, "temp": 1.0, "types": ("draft-self",)}
    with closing(load(tiny_draft, **given)) as model:
        whole = talk_over(model, shelf)
        whole.run(QUESTIONS)
        whole.answer_again()
        assert _answers(whole)[-1] != whole.all[-2].said
    with closing(load(tiny_draft, **given)) as model:
        talk_over(model, shelf).run(QUESTIONS[:2])
        name = shelf.newest() or ""
    with closing(load(tiny_draft, **given)) as model:
        resumed = talk_over(model, shelf)
        resumed.resume(name)
        resumed.run(QUESTIONS[2:])
        resumed.answer_again()
    assert _answers(resumed) == _answers(whole)


@pytest.mark.parametrize("name", ["tiny_draft", "tiny_hybrid"])
def test_taking_back_leaves_no_trace_in_the_cache(
    name: str, shelf: Shelf, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    given = {"exact": True, "max_tokens": 12, "types": ("draft-self",)}
    with closing(load(path, **given)) as model:
        straight = talk_over(model, shelf)
        straight.run(QUESTIONS[:3])
    with closing(load(path, **given)) as model:
        winding = talk_over(model, shelf)
        winding.run(
            [QUESTIONS[0], "/regen", QUESTIONS[4], "/undo", QUESTIONS[1], QUESTIONS[3], "/regen", "/undo"]
        )
        winding.run([QUESTIONS[2]])
    texts = [[m.text for m in talk.dialogue.messages] for talk in (straight, winding)]
    assert texts[0] == texts[1]


@pytest.fixture
def spoken(tiny_draft: Path, shelf: Shelf) -> Iterator[Chat]:
    """A conversation of two turns, saved, its model still loaded."""
    with closing(load(tiny_draft, max_tokens=8, types=("none",))) as model:
        talk = talk_over(model, shelf)
        talk.run(QUESTIONS[:2])
        yield talk


def test_another_models_tokens_are_read_as_text(spoken: Chat, tiny_target: Path, shelf: Shelf) -> None:
    name = spoken.keeper.name or ""
    spoken.keeper.leave()
    with closing(load(tiny_target, max_tokens=8, types=("none",))) as model:
        other = talk_over(model, shelf)
        other.resume(name)
        assert "another model spoke before" in other.screen.err.getvalue()  # type: ignore[attr-defined]
        assert all(m.tokens is None for m in other.dialogue.messages)
        texts = [m.text for m in spoken.dialogue.messages]
        assert [m.text for m in other.dialogue.messages] == texts
        other.run(["go on"])
        assert len(shelf.read(name).messages) == 6


def test_tokens_outside_the_vocabulary_are_not_believed(spoken: Chat, shelf: Shelf) -> None:
    name = spoken.keeper.name or ""
    session = shelf.read(name)
    forged = [replace(m, tokens=(10**9, -1)) if m.role == "assistant" else m for m in session.messages]
    shelf.write(name, replace(session, messages=tuple(forged)))
    spoken.resume(name)
    assert all(m.tokens is None for m in spoken.dialogue.messages)
    spoken.ask("go on")
    assert len(spoken.dialogue.messages) == 6


def test_the_cache_of_another_setting_falls_back_to_decoding(tiny_draft: Path, shelf: Shelf) -> None:
    given = {"max_tokens": 20, "types": ("draft-self",)}
    with closing(load(tiny_draft, exact=True, **given)) as model:
        talk_over(model, shelf).run(QUESTIONS[:2])
        name = shelf.newest() or ""
    for change in ({}, {"exact": True, "ctx_size": 512}, {"exact": True, "cache_type_k": "q8_0"}):
        with closing(load(tiny_draft, **given, **change)) as model:
            talk = talk_over(model, shelf)
            talk.resume(name)
            said = talk.screen.err.getvalue()  # type: ignore[attr-defined]
            assert said.count("the conversation is read again") == 1 and model.cached() == 0
            assert ("in other words" in said) == ("exact" in change)
            talk.ask(QUESTIONS[2])
            assert len(_answers(talk)) == 3
            talk.keeper.leave()
            shelf.write(name, replace(shelf.read(name), messages=shelf.read(name).messages[:4], answers=2))


# -- in the shell -------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Two conversations where specli keeps them, one with a cache, and a broken one."""
    monkeypatch.setenv("SPECLI_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "cache"))
    place = Shelf(tmp_path / "data" / "sessions")
    place.folder.mkdir(parents=True)
    for at, (name, question) in enumerate([("older", "What is \x1b[31mred?"), ("newer", "And blue?")]):
        place.write(name, Session((Message("user", question), Message("assistant", "It is.")), "m", "f"))
        os.utime(place.folder / f"{name}.json", (at, at))
    (place.folder / "broken.json").write_text("{")
    os.utime(place.folder / "broken.json", (9, 9))
    cache_of("older").parent.mkdir(parents=True)
    cache_of("older").write_bytes(b"state")
    return place


def test_sessions_are_listed_in_the_shell(kept: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions"]) == 0
    broken, newer, older = capsys.readouterr().out.splitlines()
    assert broken.startswith("broken · ") and "no session in it" in broken
    assert newer.startswith("newer · 19") and newer.endswith(" · 1 turn · And blue?")
    assert "What is" in older and "\x1b" not in older

    assert main(["sessions", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["broken", "newer", "older"]
    assert rows[0]["turns"] is None and "no session in it" in rows[0]["problem"]
    assert rows[2] == {
        "name": "older", "changed": "1970-01-01T00:00:00Z", "turns": 1, "title": "What is \x1b[31mred?",
        "model": "m", "problem": None,
    }  # fmt: skip


def test_each_has_one_row_of_a_terminal(
    kept: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "Why is the sky blue and not green, as a pond is? " * 3
    kept.write("2026-11-30-125919", Session((Message("user", long),), "m", "f"))
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setattr(terminal, "columns", lambda stream: 60)
    assert main(["sessions"]) == 0
    latest, broken, newer, _ = capsys.readouterr().out.splitlines()
    assert latest == "2026-11-30-125919 · just now · 1 turn · Why is the sky blu…"
    assert re.fullmatch(r"broken · 19\d\d-\d\d-\d\d · no session in it: Expecting prop.*…", broken)
    assert newer.endswith("· 1 turn · And blue?") and all(len(row) < 60 for row in (latest, broken, newer))
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: False)
    assert main(["sessions"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f" · 1 turn · {long.strip()}")  # piped: all of it
    assert main(["sessions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["title"] == long[:60]


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "just now"), (59, "just now"), (60, "1 min ago"), (7200, "2 h ago"), (3 * 86400, "3 d ago"),
     (40 * 86400, "2001-07-31"), (-100_000, "2001-09-10")],
)  # fmt: skip
def test_ages(seconds: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    now = 1_000_000_000.0
    assert age(now - seconds, now) == says


def test_where_none_is_saved_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECLI_DATA_DIR", str(tmp_path / "nothing"))
    assert main(["sessions"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "no conversation is saved" in said.err
    assert main(["sessions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_session_is_printed_as_markdown(kept: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    talk = (
        Message("user", "Two\nlines?", files=(Attached("a.txt", "abc"),)),
        Message("assistant", "Yes:\n\n- \x1b[31mtwo"),
    )
    kept.write("talk", Session(talk, "m", "f", system="Be brief."))
    assert main(["sessions", "show", "talk"]) == 0
    printed = "System: Be brief.\n\n> (a.txt, 3 characters)\n> Two\n> lines?\n\nYes:\n\n- \x1b[31mtwo\n"
    assert capsys.readouterr().out == printed
    assert main(["sessions", "show", "talk", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["system"] == "Be brief." and shown["messages"][0]["files"] == [
        {"name": "a.txt", "text": "abc"}
    ]
    assert main(["sessions", "show", "broken"]) == 1 and main(["sessions", "show", "tal"]) == 1
    assert "did you mean talk?" in capsys.readouterr().err


def test_what_a_terminal_shows_of_a_session_cannot_steer_it(
    kept: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specli.cli.sessions.is_terminal", lambda stream: True)
    assert main(["sessions", "show", "older"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_sessions_are_searched(kept: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    long = "and so on " * 9 + "until BLUE again" + " and on" * 9
    kept.write("long", Session((Message("user", long), Message("assistant", "blue\nBlue")), "m", "f"))
    assert main(["sessions", "search", "blue"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert (
        first.startswith("long · ")
        and "3 lines · …" in first
        and "BLUE again" in first
        and first.endswith("…")
    )
    assert second.startswith("newer · ") and second.endswith(" · And blue?")
    assert main(["sessions", "search", "blue", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["matches"]) for row in rows] == [("long", 3), ("newer", 1)]
    assert main(["sessions", "search", "nobody says this"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "no conversation in" in said.err
    assert main(["sessions", "search", " "]) == 2 and main(["sessions", "--json", "search", "a"]) == 2


def test_sessions_are_deleted_with_their_caches(kept: Shelf) -> None:
    assert main(["sessions", "delete", "older", "broken", "older"]) == 0
    assert kept.names() == ["newer"] and not cache_of("older").exists()
    assert [path.name for path in kept.folder.iterdir()] == ["newer.json"]  # and no lock stays


@pytest.mark.parametrize(
    ("name", "says"),
    [("olde", "did you mean older?"), ("../m", "cannot name a session"), ("open", "is open in")],
)
def test_all_stay_if_one_cannot_be_deleted(
    kept: Shelf, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    kept.write("open", kept.read("newer"))
    before = sorted(kept.names())
    lock = kept.lock("open")
    try:
        assert main(["sessions", "delete", "older", name]) == 1
    finally:
        lock.release()
    assert says in capsys.readouterr().err
    assert sorted(kept.names()) == before and cache_of("older").exists()
