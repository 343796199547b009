"""What a user says about token files, where the files themselves do not say it."""

from dataclasses import dataclass

from data.errors import DataError

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
COLUMN = "input_ids"
"""The column of tokens in Arrow files, by default."""
MOST_LENGTH = 2**31 - 1
"""The most tokens of a window."""


@dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """How token files are read.

    Megatron's and Arrow files contain their documents. A flat file is cut into documents after each
    `end_of_text`, or into windows of `block_size` tokens if there is none.
    """

    dtype: str | None = None
    """The type of the tokens of a flat file, as "uint32" or `np.uint32`; None: uint16, as nanoGPT
    writes them."""
    end_of_text: int | None = None
    """The token that ends each document of a flat file, as 50256 of GPT-2."""
    block_size: int | None = None
    """The tokens of each window of a flat file without `end_of_text`; not used for other files."""
    column: str | None = None
    """The column of Arrow files that has the tokens; None: input_ids."""

    def __post_init__(self) -> None:
        for attribute in ("name", "__name__"):  # of a dtype of numpy, and of its type
            if isinstance(name := getattr(self.dtype, attribute, None), str):
                object.__setattr__(self, "dtype", name)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise DataError(
                f"dtype={self.dtype!r} is not a type of tokens; choose one of {', '.join(DTYPES)}"
            )
        if self.end_of_text is not None and not 0 <= self.end_of_text < 2**63:
            raise DataError(f"end_of_text={self.end_of_text} is not a token, as it is less than 0")
        if self.block_size is not None and not 1 <= self.block_size <= MOST_LENGTH:
            raise DataError(f"block_size must be in 1..{MOST_LENGTH}, got {self.block_size}")
        if self.column == "":
            raise DataError("column is empty: leave it out, or name a column of the Arrow files")

    def refuse(self, place: object, reason: str, *names: str) -> None:
        """Raise DataError if one of the options `names` is given, for `reason`."""
        for name in names:
            value = getattr(self, name)
            if value is not None:
                raise DataError(f"{place}: {name}={value} is given, but {reason}; leave it out")
