"""Numbers of things in text. Needs no torch."""


def format_count(number: float, noun: str) -> str:
    """Format a number of things: `1 epoch`, `1,234 epochs`, `0.5 GPUs`.

    Args:
        number: The number.
        noun: The thing in the singular, whose plural ends in `s`.

    Returns:
        The number and the noun.
    """
    text = f"{number:,.0f}" if float(number).is_integer() else f"{number:g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"
