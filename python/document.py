"""The text that is read: a file of the user's, or the project's own documentation and sources."""

from plugin_path import ROOT, is_source_tree

# No tokenizer in use makes fewer tokens than one of every 40 bytes out of a text that anyone would read.
MAX_BYTES_PER_TOKEN = 40


class DocumentError(ValueError):
    """The document cannot be used; the message says why and what would do."""


def project_text():
    """Documentation first, then headers and sources, each under its name; DocumentError outside the source tree."""
    if not is_source_tree():
        raise DocumentError(
            "the default text, the project's own documentation and sources, is in the source tree alone, and "
            f"{ROOT} is none; give a text of yours: text = ... in a configuration, --text for a picture"
        )
    names = [
        "README.md",
        "docs/*.md",
        "include/locks/*.h",
        "src/*/*.md",
        "src/*/*.cc",
        "src/*/*.h",
        "hosts/*/*.cc",
        "CMakeLists.txt",
    ]
    files = [path for name in names for path in sorted(ROOT.glob(name))]
    return "\n".join(f"File {path.relative_to(ROOT)}:\n\n{path.read_text(errors='replace')}" for path in files)


def file_text(path, max_bytes):
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes)
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}") from error
    if b"\0" in data:
        raise DocumentError(f"{path} is not a text file (it holds zero bytes); give a plain text, Markdown or source file")
    text = data.decode("utf-8", errors="replace")
    if text.count("\ufffd") > 1 + len(text) // 100:
        raise DocumentError(f"{path} is not a UTF-8 text file; convert it first")
    return text


def load(model, path, max_tokens, min_tokens):
    """The document's tokens, at most `max_tokens` of them, and a line that says what was taken."""
    text = file_text(path, MAX_BYTES_PER_TOKEN * max_tokens) if path else project_text()
    name = str(path) if path else "the project's own documentation and sources"
    tokens = model.tokenize(text)
    if len(tokens) < min_tokens:
        raise DocumentError(
            f"{name} has only {len(tokens):,} tokens; at least {min_tokens:,} are needed, because a short text is read "
            "with dense attention in any case"
        )
    if len(tokens) > max_tokens:
        return tokens[:max_tokens], f"{name}, its first {max_tokens:,} tokens"
    return tokens, f"{name}, {len(tokens):,} tokens"
