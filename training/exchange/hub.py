"""Models on the Hugging Face Hub: their names, and the only two ways to the network: `fetch` and `push`.

Everything else of Hugging Face's libraries stays offline (`stay_offline`). Imports no torch.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.base import FILES
from reread.training.run.files import RUNS

log = logging.getLogger("reread")

MODELS = Path("models")
"""The folder of the models that `init=OWNER/NAME` fetches."""
OURS = (str(RUNS), str(MODELS), "corpora", "tasks")
"""Folders of ours, which are no owners of models: a path below them is mistyped."""
NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
CONFIGS = ("config.json", "bert_config.json", "model_config.json", "ernie_config.json")
"""Names of a configuration beside weights."""
WEIGHTS = (
    ("model.safetensors",),
    ("*.safetensors",),
    ("pytorch_model.bin",),
    ("model_state.pdparams",),
    ("*.pdparams",),
    ("*.pt",),
    ("*.pth",),
    ("*.index", "*.data-00000-of-00001"),  # TensorFlow's
)
"""Weights that are fetched: the files of the first row that a repository has, with one file for each glob."""
BESIDE = (*FILES, "*.model", "encoder.json", "vocab.bpe", "README.md")
"""What is fetched beside the weights and their configuration. Never code."""
PLACE = "this/folder"
"""What the examples of an export's model card load."""
WAY_OUT = "nothing was downloaded; put its configuration, weights and tokenizer in a folder and give that"


class HubName(NamedTuple):
    """A model on the Hub."""

    repository: str
    """OWNER/NAME."""
    revision: str | None = None
    """A branch, a tag or a commit; None: the main branch."""

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")

    def folder(self, *made_into: object) -> Path:
        """The folder here for this model, made into a model of some type with some options."""
        return MODELS / "-".join([str(self).replace("/", "--"), *map(str, made_into)])


def hub_name(given: str | Path) -> HubName | None:
    """The model of the Hub that is meant: OWNER/NAME or OWNER/NAME@REVISION, if that is no path.

    Without a revision it is a path, perhaps a mistyped one, if OWNER is a file or folder here or one of `OURS`.
    """
    found = NAME.fullmatch(str(given))
    if not found or os.path.lexists(given) or Path(given).suffix in _weight_suffixes():
        return None
    repository, revision = found.groups()
    owner = repository.partition("/")[0]
    return None if revision is None and (owner in OURS or os.path.lexists(owner)) else HubName(repository, revision)


def _weight_suffixes() -> set[str]:
    return {Path(pattern).suffix for row in WEIGHTS for pattern in row}


def not_looked_for(given: str | Path) -> str:
    """The end of an error line about a path that is not there: why it was not taken for a model of the Hub."""
    text = str(given)
    if re.match(r"(https?|hf):/", text):
        return "; a model of the Hub is given as OWNER/NAME, not as an address"
    if os.path.lexists(given) or Path(given).suffix in _weight_suffixes():
        return ""
    if found := NAME.fullmatch(text):
        return f"; it was not looked for on the Hub, whose model is given as {found[1]}@main"
    return "; a model of the Hub is given as OWNER/NAME" if NAME.fullmatch(f"x/{text}") else ""


@cache
def _asked_to_stay_offline() -> bool:
    """Whether the user's environment forbids the network: the first call reads it, before `stay_offline` writes it."""
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def stay_offline() -> None:
    """Keep Hugging Face's libraries, which are not imported yet, from the network, whatever they are asked for."""
    _asked_to_stay_offline()
    os.environ["HF_HUB_OFFLINE"] = "1"


@cache
def fetch(name: HubName) -> Path:
    """A folder of huggingface_hub's cache with the model's configuration, weights, tokenizer and README.md.

    Files are those of one revision; what is in the cache already is not downloaded again. With HF_HUB_OFFLINE only the
    cache is looked at. Raises `UserError` if there is no such model, no weights in it, or no way to it.
    """
    _check_installed(name)
    if _asked_to_stay_offline():
        return _cached(name)
    from huggingface_hub import HfApi

    with _online(f"{name}: no such path here, and"):
        api = HfApi()
        found = api.model_info(name.repository, revision=name.revision)
        files = _wanted(name, [one.rfilename for one in found.siblings or []])
        log.info(
            "%s: no such path here, so it is fetched from the Hub: revision %s, %s", name, found.sha, ", ".join(files)
        )
        paths = [Path(api.hf_hub_download(name.repository, file, revision=found.sha)) for file in files]
        api.hf_hub_download(name.repository, files[0], revision=name.revision)  # so that the cache knows it by its name
    return paths[0].parent


def _cached(name: HubName) -> Path:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name.repository, "config.json", revision=name.revision)
    if not isinstance(found, str):
        raise UserError(f"{name}: no such path here, and the Hub is not asked, as HF_HUB_OFFLINE is set; {WAY_OUT}")
    folder = Path(found).parent
    _wanted(name, [path.name for path in folder.iterdir()])
    log.info("%s: HF_HUB_OFFLINE is set, so revision %s is taken from the cache, %s", name, folder.name, folder)
    return folder


def _wanted(name: HubName, files: Iterable[str]) -> list[str]:
    """The files to fetch of those in a repository: no code, and nothing in folders.

    Raises `UserError` for a repository without weights that `reread convert` reads, or with several.
    """
    top = sorted(file for file in files if "/" not in file)
    weights = next((row for row in WEIGHTS if all(_of(top, pattern) for pattern in row)), None)
    if weights is None:
        raise UserError(f"{name}: the Hub's repository holds no weights that `reread convert` reads, only {_some(top)}")
    several = next((found for pattern in weights if len(found := _of(top, pattern)) > 1), None)
    if several:
        raise UserError(
            f"{name}: the Hub's repository holds its weights in several files ({_some(several)}); `reread convert` "
            "reads one"
        )
    return [file for file in top if any(fnmatchcase(file, one) for one in (*weights, *CONFIGS, *BESIDE))]


def _of(files: list[str], pattern: str) -> list[str]:
    return [file for file in files if fnmatchcase(file, pattern)]


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def check_push(name: str) -> HubName:
    """The repository to push to. Raises `UserError` if nothing can be pushed there, as far as that is known here."""
    found = NAME.fullmatch(name)
    if not found:
        raise UserError(f"--push {name}: give the repository on the Hub as OWNER/NAME or OWNER/NAME@BRANCH")
    target = HubName(*found.groups())
    _check_installed(target)
    if _asked_to_stay_offline():
        raise UserError(f"--push {name}: HF_HUB_OFFLINE is set, so nothing is pushed; unset it, or leave --push out")
    return target


def push(folder: Path, name: HubName) -> None:
    """Upload the files in `folder` to a repository, which is made, for its owner's eyes alone, if there is none.

    The examples of the model card then load it by this name. Raises `UserError` if the Hub refuses it or cannot be
    reached.
    """
    from huggingface_hub import HfApi

    with _online(f"--push {name}: {folder} is written, but", "nothing was pushed; the same command tries again"):
        api = HfApi()
        new = not api.repo_exists(name.repository)
        if new:
            api.create_repo(name.repository, private=True, exist_ok=True)
        if name.revision:
            api.create_branch(name.repository, branch=name.revision, exist_ok=True)
        card = folder / "README.md"
        own_name = card.read_text(encoding="utf-8").replace(f'"{PLACE}"', f'"{name.repository}"')
        write_atomically(card, own_name.encode())
        commit = api.upload_folder(
            repo_id=name.repository, folder_path=folder, revision=name.revision, commit_message="Export of reread"
        )
    kind = ", a new repository that is private until you publish it" if new else ""
    log.info("pushed %s to %s%s: revision %s, %s", folder, name, kind, commit.oid, commit.commit_url)


def _check_installed(name: HubName) -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise UserError(
            f"{name}: no such path here, and the Hub needs huggingface_hub, which reread[train] installs; {WAY_OUT}"
        ) from None


@contextmanager
def _online(what: str, way_out: str = WAY_OUT) -> Iterator[None]:
    """Let huggingface_hub use the network; its errors become a `UserError` that begins with `what`."""
    from huggingface_hub import constants, utils

    forget = getattr(utils, "reset_sessions", lambda: None)  # before version 1 a session stayed on- or offline
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
    forget()
    remarks = logging.getLogger("huggingface_hub")
    level = remarks.level
    remarks.setLevel(logging.ERROR)  # its retries, each a line; the error line says how they ended
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # which ones, depends on its version, its HTTP library and what the server answers
        if getattr(error, "filename", None) is not None:  # of the disk
            raise
        status = 400 if isinstance(error, ValueError) else _status(error)
        passing = status in (None, 408, 429) or status >= 500
        raise UserError(f"{what} {_reason(error)}; {way_out}", error if passing else None) from None
    finally:
        constants.HF_HUB_OFFLINE = before
        forget()
        remarks.setLevel(level)


def _reason(error: Any) -> str:
    """Why the Hub did not serve, in words."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = _status(error)
    if isinstance(error, GatedRepoError):
        return "the Hub gives this model only to those whom its owner has let in: ask for it on its page, and log in"
    if isinstance(error, RevisionNotFoundError):
        return "the Hub's repository has no such revision"
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
        return (
            f"the Hub has no such repository for you (HTTP {status}): check the name, and if you need a token for it, "
            "set one by `hf auth login` or HF_TOKEN"
        )
    if status:
        return f"the Hub answers with HTTP {status}"
    return f"the Hub cannot be asked ({type(error).__name__}: {first_line(error)})"


def _status(error: Any) -> Any:
    """The status of HTTP in an error of huggingface_hub, None in any other error."""
    return getattr(getattr(error, "response", None), "status_code", None)
