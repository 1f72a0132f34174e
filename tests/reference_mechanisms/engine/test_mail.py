from __future__ import annotations

import pytest
import torch

from reference_mechanisms.engine.mail import SLOTS, Mail


def test_reports_come_in_order_and_as_they_were_when_sent() -> None:
    report = torch.zeros(2, dtype=torch.int64)
    mail = Mail(report)
    sent, received = 0, []
    for _ in range(5):
        while mail.waiting < SLOTS:
            report.fill_(sent)
            mail.send()
            sent += 1
        received.append(mail.receive())
    assert received == [[number, number] for number in range(5)]


def test_a_report_is_neither_lost_nor_made_up() -> None:
    mail = Mail(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="no report"):
        mail.receive()
    for _ in range(SLOTS):
        mail.send()
    with pytest.raises(ValueError, match="receive one first"):
        mail.send()


def test_what_waits_can_be_forgotten() -> None:
    report = torch.zeros(1, dtype=torch.int64)
    mail = Mail(report)
    mail.send()
    mail.clear()
    report.fill_(7)
    mail.send()
    assert mail.receive() == [7]
    assert mail.waiting == 0
