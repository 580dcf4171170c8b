"""Tiny files in the published formats of VQA v2, VQA-RAD and easy-VQA."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FEATURES = 6
"""Numbers per region in the tiny features."""


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def ten(*groups: tuple[int, str]) -> list[str]:
    """Answers of ten annotators from groups of equal ones."""
    answers = [answer for number, answer in groups for _ in range(number)]
    assert len(answers) == 10
    return answers


V2 = {
    "train": [
        # question id, picture, question, answers, most frequent answer, type
        (9000, 9, "Is it red?", ten((7, "yes"), (3, "no")), "yes", "yes/no"),
        (9001, 9, "How many dogs?", ten((4, "2"), (4, "two"), (2, "3")), "2", "number"),
        (25000, 25, "What's the man/woman holding?", ten((10, "racket")), "racket", "other"),
        (25001, 25, "Is the dog left-handed?", ten((10, "no")), "no", "yes/no"),
    ],
    "val": [
        (42000, 42, "Is it blue?", ten((9, "no"), (1, "maybe")), "no", "yes/no"),
        (42001, 42, "What is it?", ten((10, "dirigible")), "dirigible", "other"),
    ],
    "test": [(61000, 61, "Is it red?", None, None, None)],
}
PARTS = {"train": "train2014", "val": "val2014", "test": "test2015"}


def write_v2(folder: Path, features: Path | None = None, transposed: bool = True) -> Path:
    """VQA v2 with region features; returns the folder. Picture p has p % 4 + 1 regions."""
    for split, records in V2.items():
        part = PARTS[split]
        questions = [
            {"image_id": image, "question": text, "question_id": number}
            for number, image, text, *_ in records
        ]
        header = {"info": {"version": "2.0"}, "data_type": "mscoco", "data_subtype": part}
        for name in (part, "test-dev2015") if split == "test" else (part,):
            path = folder / f"v2_OpenEnded_mscoco_{name}_questions.json"
            write_json(path, header | {"task_type": "Open-Ended", "questions": questions})
        if split != "test":
            annotations = [
                {
                    "question_type": "what",
                    "multiple_choice_answer": main,
                    "answers": [
                        {"answer": answer, "answer_confidence": "yes", "answer_id": position}
                        for position, answer in enumerate(answers, start=1)
                    ],
                    "image_id": image,
                    "answer_type": kind,
                    "question_id": number,
                }
                for number, image, _, answers, main, kind in reversed(records)
            ]
            path = folder / f"v2_mscoco_{part}_annotations.json"
            write_json(path, header | {"annotations": annotations})
        for image in {record[1] for record in records}:
            x = regions(image)
            path = (features or folder) / part / f"COCO_{part}_{image:012d}.jpg.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, x=x.T if transposed else x, bbox=np.zeros((len(x), 4), np.float32))
    return folder


def regions(image: int) -> np.ndarray:
    """Features of a picture, [its regions, FEATURES]."""
    rows = np.random.default_rng(image).normal(size=(image % 4 + 1, FEATURES))
    return rows.astype(np.float32)


RAD = [
    # picture, question, answer, answer type, phrase type in the public release
    ("synpic1.jpg", "Is there a fracture?", "Yes", "CLOSED", "freeform"),
    ("synpic1.jpg", "Is the heart large", "no ", "CLOSED ", "para"),
    ("synpic2.jpg", "How many lesions?", 4, "OPEN", "freeform"),
    ("synpic2.jpg", "Is it on the left or right?", "Left", "CLOSED", "freeform"),
    ("synpic1.jpg", "What abnormality is seen?", "None", "OPEN", "freeform"),
    ("synpic2.jpg", "Is it on the left?", "Yes", "CLOSED", "test_freeform"),
    ("synpic1.jpg", "Where is it?", "the pons", "OPEN", "test_para"),
]


def write_rad(folder: Path, public: bool = False) -> Path:
    """VQA-RAD as its public release or as the two-file copy; returns the folder."""
    records = [
        {
            "qid": number,
            "image_name": image,
            "image_organ": "HEAD",
            "answer": answer,
            "answer_type": kind,
            "question_type": "PRES",
            "question": question,
            "phrase_type": phrase if public else phrase.removeprefix("test_"),
        }
        | ({"qid_linked_id": f"{number:08x}", "evaluation": "not evaluated"} if public else {})
        for number, (image, question, answer, kind, phrase) in enumerate(RAD)
    ]
    test = [record[4].startswith("test") for record in RAD]
    if public:
        write_json(folder / "VQA_RAD Dataset Public.json", records)
    else:
        write_json(
            folder / "trainset.json", [r for r, t in zip(records, test, strict=True) if not t]
        )
        write_json(folder / "testset.json", [r for r, t in zip(records, test, strict=True) if t])
    images = folder / ("VQA_RAD Image Folder" if public else "images")
    images.mkdir(parents=True)
    Image.new("RGB", (40, 20), (255, 0, 0)).save(images / "synpic1.jpg", quality=100)
    Image.new("L", (10, 30), 128).save(images / "synpic2.jpg", quality=100)
    return folder


EASY = {
    "train": [["what color is the shape?", "red", 1], ["is there a circle?", "no", 0]],
    "test": [["is there not a circle?", "yes", 0]],
}


def write_easy(folder: Path, questions: dict[str, list[list[Any]]] = EASY) -> Path:
    """easy-VQA; picture n of a split has the colour (n, 0, 0), or (n, 0, 9) in the test split."""
    for split, records in questions.items():
        write_json(folder / split / "questions.json", records)
        (folder / split / "images").mkdir()
        for image in {record[2] for record in records}:
            colour = (image, 0, 9 if split == "test" else 0)
            Image.new("RGB", (64, 64), colour).save(folder / split / "images" / f"{image}.png")
    (folder / "answers.txt").write_text("circle\nred\nyes\nno\n")
    return folder
