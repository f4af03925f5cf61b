#!/bin/sh
# From a trained checkpoint to the committed folders: draft, log, tables, card, alignment heads.
#   sh training/demo/finish.sh 14:09     the time at which distillation ends
# $PYTHON names the interpreter, $RUN the folder of the run, $PER_VOICE the sentences per voice to evaluate, and
# $LOG the training log if the weights come from several runs.
set -e
until=$1
python=${PYTHON:-python}
run=${RUN:-training/made/run}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
rm -f "$run/meeting-point-draft"
for rank in 0 1; do
    "$python" -m training.demo.distill --until "$until" --run "$run" --team 2 --rank $rank &
done
wait
cp "${LOG:-$run/log.jsonl}" bundled/demo/training-log.jsonl
cp "$run/draft-log.jsonl" bundled/demo-draft/training-log.jsonl
OMP_NUM_THREADS=2 "$python" -m training.demo.evaluate --per-voice "${PER_VOICE:-14}"
"$python" -m training.demo.card
OMP_NUM_THREADS=2 "$python" -m training.demo.alignment_heads
