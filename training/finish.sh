#!/bin/sh
# From a trained checkpoint to the committed folders: draft, log, tables, card.
#   sh training/finish.sh 14:09 [CHECKPOINT...]     the time at which distillation ends
# Several checkpoints are averaged. Python is $PYTHON, or the one on the path.
set -e
until=$1
shift
python=${PYTHON:-python}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
[ $# -gt 0 ] && set -- --checkpoints "$@"
focus=$PWD/training/work/focus  # the meeting point is a file URL: it needs a whole path
rm -f $focus/meeting-point-draft
for rank in 0 1; do
    "$python" -m training.distill --until "$until" --budget 80 --run $focus \
        --clips training/work/clips-domain --team 2 --rank $rank "$@" &
done
wait
cat training/work/run/log.jsonl $focus/log.jsonl | grep '"step"' > bundled/demo/training-log.jsonl
cp $focus/draft-log.jsonl bundled/demo-draft/training-log.jsonl
OMP_NUM_THREADS=2 "$python" -m training.evaluate --per-voice "${PER_VOICE:-14}"
"$python" -m training.card
