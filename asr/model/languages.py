"""The languages of Whisper by code, and their English names, as in openai's tokenizer. Import is light."""

from __future__ import annotations

from collections.abc import Mapping

_LISTED = """
en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese pt=portuguese
tr=turkish pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian id=indonesian hi=hindi fi=finnish
vi=vietnamese he=hebrew uk=ukrainian el=greek ms=malay cs=czech ro=romanian da=danish hu=hungarian ta=tamil
no=norwegian th=thai ur=urdu hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh
sk=slovak te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian kn=kannada
et=estonian mk=macedonian br=breton eu=basque is=icelandic hy=armenian ne=nepali mn=mongolian bs=bosnian
kk=kazakh sq=albanian sw=swahili gl=galician mr=marathi pa=punjabi si=sinhala km=khmer sn=shona yo=yoruba
so=somali af=afrikaans oc=occitan ka=georgian be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic
yi=yiddish lo=lao uz=uzbek fo=faroese ht=haitian_creole ps=pashto tk=turkmen nn=nynorsk mt=maltese
sa=sanskrit lb=luxembourgish my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese tt=tatar haw=hawaiian
ln=lingala ha=hausa ba=bashkir jw=javanese su=sundanese yue=cantonese
"""

LANGUAGES: Mapping[str, str] = {
    code: name.replace("_", " ")
    for code, _, name in (entry.partition("=") for entry in _LISTED.split())
}
"""English names in lower case by code, in the order of the tokens."""

CODES: Mapping[str, str] = {name: code for code, name in LANGUAGES.items()} | {
    "burmese": "my",
    "valencian": "ca",
    "flemish": "nl",
    "haitian": "ht",
    "letzeburgesch": "lb",
    "pushto": "ps",
    "panjabi": "pa",
    "moldavian": "ro",
    "moldovan": "ro",
    "sinhalese": "si",
    "castilian": "es",
    "mandarin": "zh",
}
"""Codes by name; some languages have several."""
