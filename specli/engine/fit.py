"""Does this draft fit this target? Every reason for and against, in plain words.

Read from the headers; only where the tokenizers differ are the vocabularies loaded, without weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from specli.engine.admission import admit_vocabulary
from specli.engine.compat import (
    KIND,
    MIN_SHARE,
    TOKEN_TYPES,
    VocabularyCheck,
    compare_vocabularies,
    same_array,
    shared_tokens,
)
from specli.engine.features import FeatureDraft, feature_draft, feature_problem
from specli.engine.gguf import ArrayInfo, Header, present_parts, read_header
from specli.engine.memory import weight_bytes
from specli.engine.model import Model, ModelParams
from specli.engine.nextn import file_heads
from specli.engine.template import ChatTemplate, TemplateRefusal
from specli.errors import DraftMismatch, ModelFileError

Verdict = Literal["fits", "fits-with-notes", "does-not-fit"]
_HEADS = {
    "gemma4-assistant": "prediction heads for one target, which share its cache",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing compared. `ok` is false where it speaks against the draft; `note` says what to know
    about it, empty where there is nothing. `target`, `draft`: what each file says."""

    check: str
    target: object
    draft: object
    ok: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict on a pair with its findings. `share`: part of the draft's tokens that the target has
    too (1.0 for the same vocabulary), None where it was not needed. `weight_ratio`, `size_ratio`: the
    draft's parameters and bytes over the target's."""

    target: Path
    draft: Path
    findings: tuple[Finding, ...]
    share: float | None
    weight_ratio: float
    size_ratio: float

    @property
    def verdict(self) -> Verdict:
        """Does not fit as soon as one finding speaks against it."""
        if not all(f.ok for f in self.findings):
            return "does-not-fit"
        return "fits-with-notes" if any(f.note for f in self.findings) else "fits"


def check_fit(target: Path, draft: Path, same_vocab: bool = False) -> Fit:
    """Compare two model files. `same_vocab`: a draft of another vocabulary does not do.

    Raises ModelFileError for a file that is missing, incomplete or damaged.
    """
    ours, theirs = read_header(target), read_header(draft)
    for header in (ours, theirs):
        _require_parts(header)
    no_target = _head_kind(ours) or feature_draft(ours) is not None or file_heads(ours).heads_only
    if no_target:
        note = f"{target.name} holds only what drafts for a model; name the model itself first, and its draft second"
        finding = Finding("target kind", ours.architecture, theirs.architecture, False, note)
        return Fit(target, draft, (finding,), None, *_ratios(ours, theirs))
    kind = _head_kind(theirs)
    if kind is not None:
        finding = Finding("draft kind", "model", kind, False, _about_heads(theirs, kind))
        return Fit(target, draft, (finding,), None, *_ratios(ours, theirs))
    features = feature_draft(theirs)
    if features is not None:
        return Fit(target, draft, _features(ours, theirs, features), None, *_ratios(ours, theirs))
    if file_heads(theirs).heads_only:
        return Fit(target, draft, _mtp_heads(ours, theirs), None, *_ratios(ours, theirs))
    check = compare_vocabularies(ours, theirs)
    vocabulary, share = _vocabulary(ours, theirs, check, same_vocab)
    findings = [vocabulary, *_tokenizer(ours, theirs, check), *_models(ours, theirs)]
    return Fit(target, draft, tuple(findings), share, *_ratios(ours, theirs))


def require_model(target: Path, draft: Path) -> None:
    """Raises DraftMismatch where the draft's file holds heads that attend to a target's cache, and no model."""
    header = read_header(draft)
    kind = _head_kind(header)
    if kind is not None:
        raise DraftMismatch(f"{draft.name} cannot draft for {target.name}: {_about_heads(header, kind)}")


def _require_parts(header: Header) -> None:
    missing = [part.name for part in header.parts if not part.is_file()]
    if missing:
        raise ModelFileError(
            f"{header.path}: of this split model {', '.join(missing[:3])} is missing; fetch all parts"
        )
    if not header.has_weights:
        raise ModelFileError(f"{header.path}: holds a vocabulary and no weights; name the model itself")


def n_params(header: Header) -> int:
    """Parameters of a model, those in the other parts of a split one included."""
    return sum(prod(tensor.dims) for part in present_parts(header) for tensor in part.tensors)


def _ratios(target: Header, draft: Header) -> tuple[float, float]:
    params = n_params(draft) / max(1, n_params(target))
    return params, weight_bytes(draft) / max(1, weight_bytes(target))


# -- heads that are no models ----------------------------------------------------------------------


def _head_kind(header: Header) -> str | None:
    """What the file is if specli cannot draft with it at all."""
    return header.architecture if header.architecture in _HEADS else None


def _about_heads(draft: Header, kind: str) -> str:
    what = _HEADS[kind]
    return f"{draft.path.name} holds {what}, and is no model of its own; take a small model of the family"


def _features(target: Header, draft: Header, found: FeatureDraft) -> tuple[Finding, ...]:
    """A draft that reads the target's layers, trained for one target."""
    problem = feature_problem(target, draft)
    use = f"{found.what}: use it with --draft-model and --spec-type {found.method}"
    has = f"{target.architecture} of {(target.block_count or 0) - target.nextn_predict_layers}"
    reads = ", ".join(map(str, found.layers)) or None
    return (
        Finding("draft kind", "model", found.what, True, "" if problem else use),
        Finding("layers", has, reads, problem is None, problem or ""),
        Finding("vocabulary", target.n_vocab, draft.n_vocab),
    )


def _mtp_heads(target: Header, draft: Header) -> tuple[Finding, ...]:
    """A file of prediction heads alone: they draft for the one model that they were trained with."""
    heads = file_heads(draft)
    if heads.problem is not None:
        return (Finding("draft kind", "model", "prediction heads", False, heads.problem),)
    use = "prediction heads without their model: use them with --draft-model and --spec-type draft-mtp"
    findings = [Finding("draft kind", "model", "prediction heads", True, use)]
    key = "embedding_length"
    for name, ours, theirs in (
        ("architecture", target.architecture, draft.architecture),
        (
            "width",
            target.integer(f"{target.architecture}.{key}"),
            draft.integer(f"{draft.architecture}.{key}"),
        ),
    ):
        note = "" if ours == theirs else f"these heads belong to another model: its {name} is another"
        findings.append(Finding(name, ours, theirs, ours == theirs, note))
    problem = compare_vocabularies(target, draft).problem
    note = f"{problem}; these heads belong to another model" if problem else ""
    findings.append(Finding("vocabulary", target.n_vocab, draft.n_vocab, problem is None, note))
    return tuple(findings)


# -- vocabulary and tokenizer ----------------------------------------------------------------------


def _vocabulary(
    target: Header, draft: Header, check: VocabularyCheck, same_vocab: bool
) -> tuple[Finding, float | None]:
    sizes = target.n_vocab or 0, draft.n_vocab or 0
    if check.problem is None:
        return Finding("vocabulary", *sizes, True, check.note or ""), 1.0
    if not all(sizes):
        note = f"{check.problem}; take the whole file of a model"
        return Finding("vocabulary", *sizes, False, note), None
    if same_vocab:
        note = f"{check.problem}; choose a draft of the target's family"
        return Finding("vocabulary", *sizes, False, note), None
    share = _share(target.path, draft.path)
    if share < MIN_SHARE:
        note = (
            f"{check.problem}; only {share:.1%} of the draft's tokens are in the target's vocabulary too, "
            "so hardly anything could be drafted; choose a draft of the target's family"
        )
        return Finding("vocabulary", *sizes, False, note), share
    note = (
        f"{check.problem}; {share:.1%} of the draft's tokens are in the target's vocabulary too, and only "
        "those can be proposed, translated from one vocabulary to the other"
    )
    return Finding("vocabulary", *sizes, True, note), share


def _share(target: Path, draft: Path) -> float:
    params = ModelParams(gpu_layers=0, vocab_only=True)
    admit_vocabulary(target)
    admit_vocabulary(draft)
    with Model(target, params) as ours, Model(draft, params) as theirs:
        share = shared_tokens(ours.vocab, theirs.vocab).share
    return min(share, 0.9999)  # equal tokens under other ids are still another vocabulary


def _tokenizer(target: Header, draft: Header, check: VocabularyCheck) -> Iterator[Finding]:
    kinds = target.text(KIND), draft.text(KIND)
    yield Finding("tokenizer", *kinds)
    splits = target.text("tokenizer.ggml.pre"), draft.text("tokenizer.ggml.pre")
    differs = kinds[0] == kinds[1] and splits[0] != splits[1]
    yield Finding(
        "pre-tokenizer",
        *splits,
        note="they cut text differently, so the draft may be less sure" if differs else "",
    )
    if check.problem is None:
        yield _token_types(target, draft, check.shared)
    for name in ("bos", "eos", "eot"):
        key = f"tokenizer.ggml.{name}_token_id"
        a, b = target.integer(key), draft.integer(key)
        note = ""
        if check.problem is None and a != b:
            note = f"{name.upper()} differs; the target's decides where an answer ends"
            if name == "bos":
                note = "BOS differs; the draft sees the target's"
        yield Finding(name.upper(), a, b, note=note)
    for name in ("add_bos", "add_eos"):
        key = f"tokenizer.ggml.{name}_token"
        ours, theirs = target.metadata.get(key), draft.metadata.get(key)
        differs = ours != theirs and (
            name == "add_bos" or bool(ours) != bool(theirs)
        )  # EOS: not added unasked
        note = f"{name} differs; prompts are made as the target wants them" if differs else ""
        yield Finding(name, ours, theirs, note=note)
    yield _template(target, draft)


def _token_types(target: Header, draft: Header, shared: int) -> Finding:
    if same_array(target, draft, TOKEN_TYPES):
        return Finding("token types", "same", "same")
    both = [
        h.array(TOKEN_TYPES) for h in (target, draft) if isinstance(h.metadata.get(TOKEN_TYPES), ArrayInfo)
    ]
    if len(both) < 2:
        return Finding(
            "token types", "given" if both else None, None, note="only one file tells control tokens apart"
        )
    differing = [i for i, (a, b) in enumerate(zip(*both)) if a != b and i < shared]
    if not differing:
        return Finding("token types", "same", "same")
    shown = ", ".join(map(str, differing[:5])) + (" …" if len(differing) > 5 else "")
    note = f"{len(differing)} tokens are of another type, first {shown}; the target's types count"
    return Finding("token types", f"{len(differing)} differ", f"{len(differing)} differ", note=note)


_SAMPLES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "one"),),
    (("system", "zero"), ("user", "one"), ("assistant", "two"), ("user", "three")),
)


def _template(target: Header, draft: Header) -> Finding:
    """Templates count by what they write: files of one family often differ in the part for tools."""
    key = "tokenizer.chat_template"
    a, b = target.text(key), draft.text(key)
    if a is None or a == b:
        return Finding("chat template", "yes" if a else "none", "yes" if b else "none")
    if b is None:
        note = "the draft has no chat template, so it may be a base model that agrees less"
        return Finding("chat template", "yes", "none", note=note)
    same = _written(a) == _written(b)
    note = (
        "" if same else "the draft was tuned on another chat template than it will see, so it may agree less"
    )
    return Finding("chat template", "yes", "writes the same" if same else "another", note=note)


def _written(source: str) -> list[str]:
    """What a template makes of the samples; of two broken ones each is its own kind."""
    try:
        template = ChatTemplate(source, "<bos>", "<eos>")
    except TemplateRefusal as error:
        return [f"refused: {error}"]
    texts = []
    for sample in _SAMPLES:
        try:
            texts.append(template.render([{"role": role, "content": text} for role, text in sample]))
        except TemplateRefusal as error:
            texts.append(f"refused: {error}")
    template.close()
    return texts


# -- the models ------------------------------------------------------------------------------------


def _models(target: Header, draft: Header) -> Iterator[Finding]:
    yield Finding("architecture", target.architecture, draft.architecture)
    families = target.basename or target.name, draft.basename or draft.name
    other = bool(target.basename and draft.basename and _plain(target.basename) != _plain(draft.basename))
    yield Finding("family", *families, note="another family: it may agree less" if other else "")
    yield Finding("size", target.size_label, draft.size_label)
    yield Finding("finetune", target.finetune, draft.finetune)
    yield _context(target.context_length, draft.context_length)
    yield Finding("quantisation", target.file_type, draft.file_type)
    yield _params(target, draft)
    sizes = weight_bytes(target), weight_bytes(draft)
    yield Finding("bytes", *sizes)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _context(target: int | None, draft: int | None) -> Finding:
    note = ""
    if target and draft and draft < target:
        note = f"the draft was trained for {draft} tokens of context: beyond that it agrees less and less"
    return Finding("context length", target, draft, note=note)


def _params(target: Header, draft: Header) -> Finding:
    ours, theirs = n_params(target), n_params(draft)
    note = ""
    if weight_bytes(draft) >= 0.9 * weight_bytes(target):
        note = (
            "the draft is no smaller than the target, so drafting costs as much as it can save"
            if theirs >= ours
            else "the draft is nearly as large as the target, so drafting costs about what it can save"
        )
    return Finding("parameters", ours, theirs, note=note)
