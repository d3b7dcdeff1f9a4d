"""What requests and answers of the service look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    model_validator,
)

from cldnet.estimator.history import LessonRecord

#: Characters of a label or of a lesson's name, and samples of one request.
MOST_LETTERS, MOST_SAMPLES = 200, 1000
#: Numbers of one row.
_MOST_NUMBERS = 100_000

Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MOST_LETTERS)]
Label = StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | Text
Number = StrictInt | StrictFloat
Inputs = Annotated[
    list[Annotated[str, StringConstraints(strict=True)]]
    | list[Annotated[list[Number], Field(max_length=_MOST_NUMBERS)]],
    Field(
        max_length=MOST_SAMPLES,
        description="Sentences, or rows of numbers, or photos as base64 of their files: what the model has learned.",
    ),
]
Kind = Annotated[
    Literal["photo", "text", "row"] | None,
    Field(description="What the samples are; only needed for photos in JSON that a new model learns."),
]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class Samples(_Schema):
    """Samples alone."""

    inputs: Inputs
    kind: Kind = None


class Question(Samples):
    """Samples to predict."""

    top: int = Field(default=1, ge=1, le=1000, description="How many of the most probable classes to answer.")
    reject: float | None = Field(
        default=None, gt=0, lt=1, description="The share of known samples that may be answered with label null."
    )


class Labelled(Samples):
    """Samples with one label for all, or one label each."""

    label: Label | None = None
    labels: Annotated[list[Label], Field(max_length=MOST_SAMPLES)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.label is not None and self.labels is not None:
            raise ValueError("give either label or labels, not both")
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise ValueError(f"there are {len(self.inputs)} inputs and {len(self.labels)} labels: give one label each")
        return self

    def every_label(self, count: int) -> list[Any] | None:
        """The label of each of so many samples; None if there is none."""
        return self.labels if self.label is None else [self.label] * count


class Lesson(Labelled):
    """Samples to learn."""

    name: Text | None = Field(default=None, description="Name of the lesson.")
    once: bool = Field(
        default=False, description="Learn nothing if the model remembers a lesson of this name: safe to send again."
    )
    allow_duplicates: bool = Field(
        default=False, description="Learn samples that were learned before; each then counts twice."
    )


class Forgotten(Labelled):
    """Samples to forget, or a class to drop without them."""

    model_config = ConfigDict(populate_by_name=True)

    inputs: Inputs = Field(default_factory=list)
    class_: Label | None = Field(default=None, alias="class", description="Drop this class without its samples.")


class Undone(_Schema):
    """A lesson to take back."""

    lesson: StrictInt | Text | None = Field(default=None, description="Its number or name; by default the last one.")


class Renamed(_Schema):
    """A class with its new label."""

    old: Label
    new: Label


class LikelyClass(BaseModel):
    """A class and its probability."""

    label: Any
    probability: float


class Prediction(BaseModel):
    """The answer for one sample; of one that cannot be read it is the reason alone."""

    label: Any = None
    known: float | None = Field(default=None, description="Share of known samples that look as strange as this one.")
    top: list[LikelyClass] | None = None
    error: str | None = None


class Predictions(BaseModel):
    """Answers in the order of the samples."""

    predictions: list[Prediction]


class LessonAnswer(BaseModel):
    """What the model remembers of a lesson; ``kept`` says whether it can be undone."""

    number: int
    name: str | None
    date: str
    action: str
    total: int
    samples: list[tuple[Any, int]] | None
    digest: str | None
    repeated: bool
    kept: bool

    @classmethod
    def of(cls, record: LessonRecord) -> LessonAnswer:
        """Labels may be of any type, so samples are pairs."""
        samples = None if record.samples is None else [*record.samples.items()]
        names = ("number", "name", "date", "action", "total", "digest", "repeated", "kept")
        return cls(samples=samples, **{name: getattr(record, name) for name in names})


class Skipped(BaseModel):
    """A file that could not be read, and why."""

    name: str
    reason: str


class Changed(BaseModel):
    """The model after a change that is on disk."""

    bytes: int
    undo_bytes: int = Field(description="Bytes of the sums of lessons that can be undone, beside those of the model.")
    classes: int
    notes: list[str] = []


class Learned(Changed):
    """What was learned. ``repeated``: a lesson of this name was known already, and nothing was changed."""

    lesson: LessonAnswer
    new: list[Any]
    skipped: list[Skipped]
    repeated: bool


class Forgot(Changed):
    """What was forgotten: a number of samples or a class, and the classes that have left the model."""

    forgot: Any
    gone: list[Any]


class UndoneAnswer(Changed):
    """The lesson that was taken back, and the classes that have left the model with it."""

    undone: LessonAnswer
    gone: list[Any]


class ClassAnswer(BaseModel):
    """A class, how many samples of it were learned, and the first and the last day."""

    label: Any
    samples: float | None
    first: str | None
    last: str | None


class Status(BaseModel):
    """The model and what the service takes."""

    version: str
    model: str
    noun: str | None = Field(description="photo, text or row; null as long as nothing was learned.")
    classes: int
    room: int | None
    bytes: int
    undo_bytes: int
    solver: str | None
    rejects: bool
    keeps_lessons: int
    lessons: int
    kinds: dict[str, str | None] = Field(
        description="Why samples of a kind cannot be learned here, or null if they can."
    )
    limits: dict[str, int]


class Promise(BaseModel):
    """A promise of the model; ``holds`` is null if there was nothing to compare with."""

    name: str
    holds: bool | None
    reason: str


class AuditAnswer(BaseModel):
    """Whether the promises hold."""

    holds: bool
    samples_kept: int = Field(description="Bytes of training samples that the model keeps.")
    compared: int
    promises: list[Promise]


class Problem(BaseModel):
    """What was wrong, and what to do."""

    error: str
