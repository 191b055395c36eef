"""``mansard sign`` and ``mansard keygen``: who made an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mansard.cli.models import ArtifactArgument
from mansard.cli.output import JsonOption, Output


def sign(
    artifact: ArtifactArgument,
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="The private key: Ed25519, PEM (mansard keygen).")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="ARTIFACT", help="The file to write. Default: the artifact itself."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sign an artifact, so that others can load it with --trusted-key or trusted_keys.

    Everything in the file is checked against its hash first. Signatures of other keys stay.
    """
    from mansard.artifact.signing import sign_artifact

    with Output(as_json) as out:
        signer = sign_artifact(artifact, key, output)
        target = output or artifact
        out.show(f"{target}: signed by {signer}")
        out.result({"artifact": str(target), "key": signer})


def keygen(
    output: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The private key to write; the public one gets suffix .pub."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a key pair for mansard sign: one that stays secret, and one that others trust."""
    from mansard.artifact.signing import generate_key

    with Output(as_json) as out:
        private, public, text = generate_key(output)
        out.show(f"{private}: the private key, which stays secret")
        out.show(f"{public}: the public key, {text}")
        out.result({"private": str(private), "public": str(public), "key": text})
