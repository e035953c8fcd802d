"""What a long command says meanwhile: one line on a terminal, a readable log anywhere else."""

import io

from calibration.telling import Teller


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_every_log_line_and_progress_now_and_then() -> None:
    file, now = io.StringIO(), [0.0]
    teller = Teller(file, lambda: now[0])
    for step in range(1_000):
        now[0] = step / 20  # fifty seconds in all
        teller.progress(step, 1_000, "Measuring 1 decode", 7.4)
        if step == 300:
            teller.log("Pass 2: 40 points")
    teller.end()
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue()
    assert "\033" not in file.getvalue()
    assert "Pass 2: 40 points" in lines
    assert lines[0] == "0/1000 Measuring 1 decode, about 7 s left"
    assert len(lines) == 1 + 5


def test_a_terminal_gets_one_line_that_is_written_over() -> None:
    screen = Screen()
    teller = Teller(screen, lambda: 0.0)
    teller.progress(1, 9, "Measuring")
    teller.progress(2, 9, "Measuring", 3.0)
    teller.log("Fitted")
    teller.progress(0, 0, "Fitting")
    teller.end()
    assert screen.getvalue() == (
        "\r\033[K1/9 Measuring\r\033[K2/9 Measuring, about 3 s left\r\033[KFitted\n\r\033[KFitting\r\033[K"
    )
