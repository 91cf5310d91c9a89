"""Traditional to simplified Chinese by OpenCC's `t2s`, made idempotent.

OpenCC's own conversion is not, for two reasons. A phrase that keeps a traditional character (乾清宮 -> 乾清宫) is not a
phrase when converted again (干清宫): here such results are left as they are. And 薴 is simplified to 苧, which is
simplified to 苎: here it is converted until nothing changes.
"""

import re
from collections.abc import Callable
from functools import cache

_KEPT = re.compile(
    r"("
    r"大目乾连冥间救母变文|不可赀計|其阴多蒐|变徵之声|变徵之音|幺麽小丑|旋乾转坤|颠乾倒坤|乾佑县|"
    r"乾安县|乾安镇|乾清宫|乾闼婆|卢象昇|吴育昇|张法乾|於梨华|杨联陞|氾胜之|温昇豪|王彦昇|"
    r"申昇勋|蒐于红|阎鹤昇|陈志昇|韩昇延|麽些族|东氾|乌昇|乾县|乾图|乾断|乾纲|变徵|吴祕|幺麽|"
    r"张昇|徵声|徵调|怀釐|於伦|於则|於单|於戏|於潜|毕昇|氾国|祕琼|笃麽|芸薹|萧乾|蒋昇|蒐狝|"
    r"蒐猎|陈昇|龚昇"
    r")"
)
"""The results of phrases of OpenCC 1.4.2 (TSPhrases) that it would convert again, the longest first."""


def simplify(text: str) -> str:
    """`text` in simplified characters: `opencc.OpenCC("t2s").convert(text)`, made idempotent."""
    convert = _converter()
    for _ in range(9):  # two phrases side by side can make a third
        # The odd parts are those that matched.
        parts = [part if number % 2 else convert(part) for number, part in enumerate(_KEPT.split(text))]
        before, text = text, "".join(parts)
        if text == before:
            break
    return text


@cache
def _converter() -> Callable[[str], str]:
    from opencc import OpenCC

    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert
