"""Classes by architecture and kernels."""

from nextn.families.registry import FAMILIES
from nextn.models import registry


def test_class_is_imported_when_asked_for(monkeypatch):
    monkeypatch.setitem(
        registry.CLASSES, "Fraction", {"reference": "fractions:Fraction", "cpu": "decimal:Decimal"}
    )
    assert registry.model_class("Fraction").__name__ == "Fraction"
    assert registry.model_class("Fraction", "cpu").__name__ == "Decimal"


def test_every_architecture_has_classes():
    assert set(registry.CLASSES) == set(FAMILIES)
