#!/usr/bin/env bash
# What the heads of somebody else's model can lose: two RoBERTa checkpoints of antibodies, trained to convergence.
#
#   benchmarks/antibodies.sh OUT
#
# Downloads two packages from PyPI: sapiens 1.0.5 (MIT), the checkpoints of heavy and light chains, whose architecture and
# criterion are their authors' own; and anarci 2026.2.13.2 (BSD), human germline genes. Heads are scored, and the models
# refitted, on germline chains (each V gene with four J genes); the loss is measured on the variable regions of eight
# therapeutic antibodies, each masked 25 times. One table for each chain in OUT/*.txt. About three minutes on one core.
set -euo pipefail
(($# == 1)) || { echo "antibodies.sh: got $# arguments, needs OUT" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
python3 -m pip download --quiet --no-deps --dest . sapiens==1.0.5 anarci==2026.2.13.2
for wheel in *.whl; do python3 -m zipfile -e "$wheel" .; done

# Heavy, then light chains of trastuzumab, adalimumab, bevacizumab, rituximab, cetuximab, pembrolizumab, nivolumab,
# ipilimumab.
cat >heavy.txt <<'END'
EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS
EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS
EVQLVESGGGLVQPGGSLRLSCAASGYTFTNYGMNWVRQAPGKGLEWVGWINTYTGEPTYAADFKRRFTFSLDTSKSTAYLQMNSLRAEDTAVYYCAKYPHYYGSSHWYFDVWGQGTLVTVSS
QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA
QVQLKQSGPGLVQPSQSLSITCTVSGFSLTNYGVHWVRQSPGKGLEWLGVIWSGGNTDYNTPFTSRLSINKDNSKSQVFFKMNSLQSNDTAIYYCARALTYYDYEFAYWGQGTLVTVSA
QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS
QVQLVESGGGVVQPGRSLRLDCKASGITFSNSGMHWVRQAPGKGLEWVAVIWYDGSKRYYADSVKGRFTISRDNSKNTLFLQMNSLRAEDTAVYYCATNDDYWGQGTLVTVSS
QVQLVESGGGVVQPGRSLRLSCAASGFTFSSYTMHWVRQAPGKGLEWVTFISYDGNNKYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAIYYCARTGWLGPFDYWGQGTLVTVSS
END
cat >light.txt <<'END'
DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK
DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK
DIQMTQSPSSLSASVGDRVTITCSASQDISNYLNWYQQKPGKAPKVLIYFTSSLHSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQYSTVPWTFGQGTKVEIK
QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK
DILLTQSPVILSVSPGERVSFSCRASQSIGTNIHWYQQRTNGSPRLLIKYASESISGIPSRFSGSGSGTDFTLSINSVESEDIADYYCQQNNNWPTTFGAGTKLELK
EIVLTQSPATLSLSPGERATLSCRASKGVSTSGYSYLHWYQQKPGQAPRLLIYLASYLESGVPARFSGSGSGTDFTLTISSLEPEDFAVYYCQHSRDLPLTFGGGTKVEIK
EIVLTQSPATLSLSPGERATLSCRASQSVSSYLAWYQQKPGQAPRLLIYDASNRATGIPARFSGSGSGTDFTLTISSLEPEDFAVYYCQQSSNWPRTFGQGTKVEIK
EIVLTQSPGTLSLSPGERATLSCRASQSVGSSYLAWYQQKPGQAPRLLIYGAFSRATGIPDRFSGSGSGTDFTLTISRLEPEDFAVYYCQQYGSSPWTFGQGTKVEIK
END
python3 - <<'END'
import ast
import random
from pathlib import Path

genes = ast.literal_eval(Path("anarci/germlines.py").read_text().partition("=")[2].strip())
for name, chains in (("heavy", "H"), ("light", "KL")):
    choose, germline = random.Random(0), set()
    for chain in chains:
        joining = list(genes["J"][chain]["human"].values())
        for variable in genes["V"][chain]["human"].values():
            germline |= {(variable + end).replace("-", "") for end in choose.sample(joining, min(4, len(joining)))}
    lines = sorted(germline)
    choose.shuffle(lines)
    splits = {"valid": lines[:200], "train": lines[200:], "test": Path(f"{name}.txt").read_text().split() * 25}
    for split, sequences in splits.items():
        Path(f"{name}.{split}").write_text("".join(" ".join(sequence) + "\n" for sequence in sequences))
END

models=sapiens/models/v1
task=(--task masked_lm --sample-break-mode eos --tokens-per-sample 128 --cpu)
for chain in heavy light; do
  whole=$models/checkpoint_v${chain:0:1}.pt data=$chain-bin
  compared=$whole
  rm -rf "$data"
  fairseq-preprocess --only-source --srcdict $models/dict.txt --destdir "$data" --trainpref $chain.train \
    --validpref $chain.valid --testpref $chain.test >/dev/null 2>&1
  headgates score "$data" "${task[@]}" --path "$whole" --method ablation --out $chain.json --force
  for heads in 24 16 8; do
    choice=(--path "$whole" --scores "$chain.json" --keep "$heads" --force)
    headgates prune "${choice[@]}" --out $chain-$heads.pt >/dev/null
    headgates prune "$data" "${task[@]}" "${choice[@]}" --refit --out $chain-$heads-refit.pt >/dev/null
    compared+=:$chain-$heads.pt:$chain-$heads-refit.pt
  done
  for share in 0.7 0.5; do
    headgates compress "$data" "${task[@]}" --path "$whole" --params $share --out $chain-$share.pt --force >/dev/null
    compared+=:$chain-$share.pt
  done
  headgates evaluate "$data" "${task[@]}" --path "$compared" --out $chain-losses.json --force | tee $chain-losses.txt
done
