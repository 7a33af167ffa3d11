"""LongBench v1: its 21 sets from the published files, in prompts of the published form."""

from __future__ import annotations

import json
from pathlib import Path

from sample import Sample
from tasks import records
from tasks.errors import TaskError

# New tokens of each set, as published.
SETS = {
    "narrativeqa": 128,
    "qasper": 128,
    "multifieldqa_en": 64,
    "multifieldqa_zh": 64,
    "hotpotqa": 32,
    "2wikimqa": 32,
    "musique": 32,
    "dureader": 128,
    "gov_report": 512,
    "qmsum": 512,
    "multi_news": 512,
    "vcsum": 512,
    "trec": 64,
    "triviaqa": 32,
    "samsum": 128,
    "lsht": 64,
    "passage_count": 32,
    "passage_retrieval_en": 32,
    "passage_retrieval_zh": 32,
    "lcc": 64,
    "repobench-p": 64,
}
# Few-shot lists and code go on as they are: published results put no chat template around them.
WITHOUT_CHAT = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}


def _question(instruction: str, label: str, between: str = "\n\n") -> str:
    """The instruction, the context under its label, the instruction again, and the question."""
    return f"{instruction}\n\n{label}{{context}}\n\n{instruction}\n\nQuestion: {{input}}{between}Answer:"


PASSAGES = _question("Answer the question from the passages: give the answer alone.", "Passages:\n", "\n")
QASPER = (
    "Answer the question about the scientific article in as few words as you can, at most a sentence. If the article does "
    'not answer it, write "unanswerable". If it is a yes/no question, write "yes", "no" or "unanswerable". Explain nothing.'
)
TEMPLATES = {
    "narrativeqa": _question(
        "Answer the question about the story, a novel or a film script, in as few words as you can. Explain nothing.",
        "Story: ",
    ),
    "qasper": _question(QASPER, "Article: "),
    "multifieldqa_en": _question("Answer the question about the text briefly, without other words.", "", "\n"),
    "multifieldqa_zh": "请根据下面的文章用中文简短作答。\n\n{context}\n\n请根据上文回答问题，只写答案，不写其他内容。\n\n问题：{input}\n回答：",
    "hotpotqa": PASSAGES,
    "2wikimqa": PASSAGES,
    "musique": PASSAGES,
    "dureader": "请根据文章回答问题。\n\n文章：{context}\n\n请根据上面的文章作答。\n\n问题：{input}\n回答：",
    "gov_report": "Summarise this report of a government agency on one page.\n\nReport:\n{context}\n\n"
    "Now summarise the report on one page.\n\nSummary:",
    "qmsum": "Here is a meeting's transcript. Answer the query about it in a few sentences.\n\nTranscript:\n{context}\n\n"
    "Now answer the query about the transcript in a few sentences.\n\nQuery: {input}\nAnswer:",
    "multi_news": "Summarise these news articles on one page.\n\nNews:\n{context}\n\n"
    "Now summarise all of the news on one page.\n\nSummary:",
    "vcsum": "请阅读下面的会议记录，并写一段总结。\n会议记录：\n{context}\n\n会议总结：",
    "trec": "Say of which type the question is, as in these examples.\n\n{context}\n{input}",
    "triviaqa": "Answer the question from the passage, without other words, as in these examples.\n\n{context}\n\n{input}",
    "samsum": "Summarise the dialogue in a few short sentences, as in these examples.\n\n{context}\n\n{input}",
    "lsht": "请按照下面的例子判断新闻的类别。\n\n{context}\n{input}",
    "passage_count": "Below are paragraphs of Wikipedia, some of them more than once. Read them and find out how many "
    "different ones there are.\n\n{context}\n\nHow many different paragraphs are there? Write only the number, such as 1, 2 "
    "or 3.\n\nThe final answer is: ",
    "passage_retrieval_en": "Below are 30 paragraphs of Wikipedia and then the abstract of one of them. Find out of which "
    "one.\n\n{context}\n\nThe abstract:\n\n{input}\n\n"
    'Write the paragraph\'s number in the form "Paragraph 1", "Paragraph 2" and so on.\n\nThe answer is: ',
    "passage_retrieval_zh": "下面有若干段文字，最后是其中一段的摘要。请判断摘要来自哪一段。\n\n{context}\n\n摘要如下：\n\n{input}\n\n"
    "请写出该段的编号，格式为“段落1”“段落2”等。\n\n答案是：",
    "lcc": "Complete the code below.\n{context}Next line of code:\n",
    "repobench-p": "Complete the code below.\n{context}{input}Next line of code:\n",
}


def read(name: str, path: str | Path, *, limit: int | None = None, prompts: str | Path | None = None) -> list[Sample]:
    """The samples of one set. `prompts` is LongBench's own dataset2prompt.json, for results to be compared with published
    ones; without it the wording is ours."""
    if name not in SETS:
        raise TaskError(f"no set {name!r} in LongBench; there are {', '.join(SETS)}")
    template = _published(prompts, name) if prompts else TEMPLATES[name]
    wording = "published" if prompts else "own"
    return [_sample(name, index, record, template, wording) for index, record in enumerate(records.read(path, limit))]


def _sample(name: str, index: int, record: records.Record, template: str, wording: str) -> Sample:
    published_in = str(record.members.get("dataset", name)).removesuffix("_e")
    if published_in != name:
        raise record.error(f"expected a record of {name}, got one of {published_in}")
    classes = record.members.get("all_classes") or []
    if name in ("trec", "lsht") and not classes:
        raise record.error("'all_classes' is missing")
    before, after = template.split("{context}")
    asked = record.text("input", may_be_empty=True)
    return Sample(
        task=f"longbench/{name}",
        index=index,
        context=before.replace("{input}", asked) + record.text("context"),
        question=after.replace("{input}", asked),
        answers=tuple(record.texts("answers")),
        new_tokens=SETS[name],
        details={
            "words": record.members.get("length"),
            "id": record.members.get("_id"),
            "classes": list(classes),
            "wording": wording,
            "chat": name not in WITHOUT_CHAT,
            **({"stop": "\n"} if name == "samsum" else {}),
        },
    )


def _published(path: str | Path, name: str) -> str:
    try:
        templates = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise TaskError(f"{path}: not JSON: {error}") from error
    template = templates.get(name) if isinstance(templates, dict) else None
    if not isinstance(template, str) or template.count("{context}") != 1:
        raise TaskError(f"{path}: expected a prompt with one {{context}} for {name!r}")
    return template
