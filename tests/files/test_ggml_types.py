"""What is written down of the format's types is what the `gguf` package says."""

from gguf.constants import GGML_QUANT_SIZES, LlamaFileType

from octavo.files.ggml_types import BLOCK_TYPES, FILE_TYPES


def test_block_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    shared = theirs.keys() & BLOCK_TYPES  # another release may know more, or fewer
    assert len(shared) > 25 and {kind: theirs[kind] for kind in shared} == {kind: BLOCK_TYPES[kind] for kind in shared}


def test_file_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in LlamaFileType}
    shared = theirs.keys() & FILE_TYPES
    assert len(shared) > 25 and {kind: theirs[kind] for kind in shared} == {kind: FILE_TYPES[kind] for kind in shared}
