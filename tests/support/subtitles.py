"""Files of OpenSubtitles with given links."""

from __future__ import annotations

import gzip
import zipfile

from support import mirrors


def corpus(folder, films):
    """A corpus of one document for each film: of each link its xtargets, its ids in .ids, and its overlap."""
    xml, ids, english, russian = [], [], [], []
    for film, links in films.items():
        documents = f"en/2000/{film}/1.xml.gz", f"ru/2000/{film}/2.xml.gz"
        xml.append('<linkGrp fromDoc="{}" toDoc="{}">'.format(*documents))
        for number, (targets, sentences, overlap) in enumerate(links):
            attribute = "" if overlap is None else f' overlap="{overlap}"'
            xml.append(f'<link id="{number}" xtargets="{targets}"{attribute}/>')
            ids.append("\t".join([*documents, sentences]))
            english.append(f"en {film} {number}")
            russian.append(f"ru {film} {number}")
        xml.append("</linkGrp>")
    members = {"en": english, "ru": russian, "ids": ids}
    return archive(folder, members), alignment(folder, "\n".join(["<cesAlign>", *xml, "</cesAlign>"]))


def archive(folder, members):
    path = folder / "moses.zip"
    path.write_bytes(mirrors.zipped({f"OpenSubtitles.en-ru.{name}": mirrors.lines(t) for name, t in members.items()}))
    return path


def alignment(folder, xml):
    path = folder / "alignment.xml.gz"
    path.write_bytes(gzip.compress(xml.encode()))
    return path


def changed(path, target, change):
    """A copy of the Moses archive, one member of which is changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    target.write_bytes(mirrors.zipped({name: change(name, text) for name, text in members.items()}))
    return target
