"""What a recipe may not hold, in addresses of every scheme, chained or mistyped, and in commands."""

import pytest

from reread.pipeline.recipe.slurm import SlurmSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.redaction import find_secret, redacted
from reread.training.data.kinds import KINDS

WITH_A_SECRET = [
    "https://me:hush@host/corpus",
    "HTTPS://me:hush@host/corpus",
    "https://hush@host/corpus",
    "https://hush:@host/corpus",
    "https://me:hush/hush@host/corpus",
    "https://me:${PASSWORD}hush@host/corpus",
    "s3://KEY:hush@bucket/corpus",
    "ftp://me:hush@[::1]:80",
    "simplecache::https://me:hush@host/corpus",
    "zip://{}::https://host/a.zip?sig=hush",
    "https://host/corpus?sv=2024-01-01&sig=hush",
    "https://me:${PASSWORD}@host/corpus?sig=hush",
    "https://host/{}?X-Amz-Signature=hush",
    "https://host/{}?X-Amz-Credential=hush%2Fus-east-1",
    "https://host/{}?X-Goog-Signature=hush",
    "https://host/{};jwt=hush",
    "https://host/corpus?raw=true&access_token=hush#top",
    "https://host/corpus?q=hush5678901234567890abcdefgh",
    "https://host/corpus?hush5678901234567890abcdefgh",
    "https:/me:hush@host/corpus",
    "http//me:hush@host/corpus",
    "me:hush@host/corpus",
    "pipe:curl -u me:hush https://host/{}",
    "pipe:curl --user 'me:hush' https://host/{}",
    "pipe:curl -H 'Authorization: Bearer hush' https://host/{}",
    'pipe:curl -H "authorization: hush" https://host/{}',
    "pipe:curl https://me:hush@host/{}",
    "pipe:curl 'https://host/{}?sig=hush'",
    "pipe:AWS_SECRET_ACCESS_KEY=hush aws s3 cp s3://bucket/{} -",
    "pipe:wget --http-password=hush -O - https://host/{}",
    "pipe:curl -ume:hush https://host/{}",
    "pipe:curl -sSu me:hush https://host/{}",
    "pipe:curl -H 'X-Api-Key: hush' https://host/{}",
    "pipe:curl -H 'PRIVATE-TOKEN: hush' https://host/{}",
    "pipe:curl --oauth2-bearer hush https://host/{}",
    "pipe:curl -b session=hush https://host/{}",
    "pipe:sshpass -p hush ssh me@host cat {}",
    "https://host/{}?auth_key=hush",
    "https://host/{}?pass=hush",
    "https://host/{}?sas=hush",
    "https://host/{}?hmac=hush",
    "https://host/{}?%73ig=hush",
]
WITHOUT = [
    "corpora/zh",
    "/data/a:b/corpus@2",
    "https://host:8080/corpus@main/x",
    "https://host/corpus?raw=true&dl=1",
    "https://me:${PASSWORD}@host/corpus",
    "https://${USER}:${PASSWORD}@host/corpus",
    "sftp://${USER}@host/corpus",
    "https://host/corpus?sig=${SIG}&X-Amz-Signature=${SIGNATURE}",
    "abfs://container@account.dfs.core.windows.net/corpus",
    "hf://datasets/owner/name@main/corpus",
    "s3://bucket/corpus",
    "pipe:ssh me@host cat corpus/{} | zstd -d",
    "pipe:rsync me@host:corpus/{} -",
    'pipe:curl -u "me:$PASSWORD" https://host/{}',
    'pipe:curl -H "Authorization: Bearer ${TOKEN}" https://host/{}',
    "pipe:TOKEN=$(cat token) fetch {}",
    'pipe:curl -sSu "me:$PASSWORD" https://host/{}',
    "pipe:rsync -au host:corpus/{} -",
    "pipe:sshpass -f password ssh me@host cat {}",
    "github://owner:repository@main/corpus",
    "s3://bucket/corpus?versionId=3sL4kqtJlcpXroDTDmJrmSpXd3dIbrHY",
    "https://host/corpus?%6Eame=value",
]


@pytest.mark.parametrize("address", WITH_A_SECRET)
def test_a_secret_in_a_recipe_is_refused_and_not_shown(address: str) -> None:
    """Neither if another setting beside it is wrong."""
    given = {"kind": "rows", "cache": {"folder": "cache", "size": 1}}
    for values in (
        {"corpus": address},
        {"corpora": [{"path": address, "weight": 1, "wieght": 1}]},
        {"corpus": [address]},
    ):
        with pytest.raises(UserError) as refused:
            KINDS["rows"].settings.parse({**given, **values}, "data")
        assert "hush" not in str(refused.value)
    with pytest.raises(
        UserError, match=r"corpus: holds a .*; put it into an environment variable and write \$\{NAME\} inst"
    ):
        KINDS["rows"].settings.parse({**given, "corpus": address}, "data")


@pytest.mark.parametrize("address", WITHOUT)
def test_an_address_without_a_secret_is_left_as_it_is(address: str) -> None:
    assert find_secret(address) is None
    for line in (f"`{address}`: not there", f"{address}: not there", f"({address})", f"{address}, {address}."):
        assert redacted(line) == line


@pytest.mark.parametrize("address", WITH_A_SECRET)
def test_what_is_redacted_holds_no_secret_any_more(address: str) -> None:
    assert redacted(redacted(address)) == redacted(address) and find_secret(redacted(address)) is None


def test_a_secret_in_a_line_that_jobs_run_first_is_refused_and_not_shown() -> None:
    for line in ("export WANDB_API_KEY=hush", "curl -ume:hush https://host"):
        with pytest.raises(UserError, match=r"setup.*: holds a password.*put it into a file") as refused:
            SlurmSettings.parse({"setup": [line]}, "slurm")
        assert "hush" not in str(refused.value)
    SlurmSettings.parse({"setup": ["module load cuda", ". ~/.secrets", "export WANDB_API_KEY=$(cat key)"]}, "slurm")


def test_a_line_keeps_what_stands_around_a_secret() -> None:
    line = UserError("a https://me:hush@host/x?sig=hush&v=1 b 'https://host/?token=hush' c")
    assert str(line) == "a https://...@host/x?sig=...&v=1 b 'https://host/?token=...' c"
