"""The settings of the recipes: environment variables, each with its type, meaning and group. Families share classes."""

from __future__ import annotations

from collections.abc import Mapping

from settings.classification import Classification, Mnli
from settings.general import GROUPS, Default, Settings
from settings.language_model import LanguageModel, WikiText103
from settings.translation import (
    Demo,
    Iwslt14DeEn,
    OpenSubtitlesEnRu,
    PrunePretrained,
    Sweep,
    Translation,
    WmtEnRu,
)

__all__ = ["GROUPS", "RECIPES", "Default", "Settings"]

RECIPES: Mapping[str, type[Settings]] = {
    "translation.sh": Translation,
    "sweep.sh": Sweep,
    "demo.sh": Demo,
    "wmt_en_ru.sh": WmtEnRu,
    "opensubtitles_en_ru.sh": OpenSubtitlesEnRu,
    "iwslt14_de_en.sh": Iwslt14DeEn,
    "prune_pretrained.sh": PrunePretrained,
    "language_model.sh": LanguageModel,
    "wikitext103.sh": WikiText103,
    "classification.sh": Classification,
    "mnli.sh": Mnli,
}
