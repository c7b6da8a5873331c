set -u

# Another Ray may run on the same node, of this user too. This job has a token, folders and ports of
# its own. With port 0, Ray takes a free one.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od --address-radix=n --format=x1 --read-bytes=32 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
unset RAY_ADDRESS
export RAY_raylet_start_wait_time_s=120
# Ray would end this script when the driver ends.
export RAY_process_group_cleanup_enabled=0
# All nodes of the job end together, so there are no others to which a node's work could move.
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0

# serve_ray FOLDER OPTIONS...: run Ray on this node until SIGTERM, then remove its folder.
serve_ray() {
    local folder=$1 told_to_end=
    shift
    ulimit -n "$(ulimit -Hn)"
    trap 'told_to_end=yes; kill $!' TERM
    "$python" -m ray.scripts.scripts start "$@" --temp-dir="$folder" --block \
        --num-cpus="$SLURM_CPUS_ON_NODE" ${SLURM_GPUS_ON_NODE:+--num-gpus="$SLURM_GPUS_ON_NODE"} \
        --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 \
        --disable-usage-stats >"$folder/start.log" 2>&1 &
    wait
    wait # SIGTERM ends the first `wait` before Ray has ended
    [[ $told_to_end ]] || cat "$folder/start.log" >&2
    rm -rf "$folder"
}

fail() {
    echo "$1" >&2
    exit 1
}

ending= # `requeue` or `stop` once this job was told to end
head= workers= driver= # processes of this job

end() {
    is_interrupted=yes
    if [[ ! $ending && $driver ]]; then
        kill -TERM "$driver" 2>/dev/null
    fi
    ending=$1
}

# Slurm's controller may be too busy for an answer.
requeue() {
    for pause in 1 5 20; do
        scontrol requeue "$SLURM_JOB_ID" && return
        sleep $pause
    done
    scontrol requeue "$SLURM_JOB_ID"
}

exit_if_ending() {
    [[ $ending != stop ]] || exit 130
    [[ ! $ending ]] || fail "The time of job $SLURM_JOB_ID was over before its run could start; it needs more --time."
}

# End Ray on the other nodes first, because each tells the head that it leaves.
end_services() {
    exec 9>&-
    if [[ $workers ]]; then
        wait "$workers" 2>/dev/null
    fi
    kill "$head" 2>/dev/null
    wait "$head" 2>/dev/null
}

trap 'end requeue' USR1 # Slurm sends it before the time is over
trap 'end stop' TERM    # `hookyard stop` sends it
trap end_services EXIT

# The paths of Ray's sockets may have 107 characters, too few for the TMPDIR of some clusters.
folder=$(mktemp --directory /tmp/ray-XXXXXX) || exit 1
serve_ray "$folder" --head --port=0 --include-dashboard=false &
head=$!
until [[ -s $folder/$address_file ]]; do
    kill -0 "$head" 2>/dev/null || fail "Ray did not start on $SLURMD_NODENAME."
    exit_if_ending
    sleep 0.5
done
address=$(<"$folder/$address_file")

if ((SLURM_NNODES > 1)); then
    others=$((SLURM_NNODES - 1))
    export python
    mkfifo "$folder/lifeline"
    # A signal to srun would kill the Rays before they have cleaned up. They end when the input does.
    srun --nodes=$others --ntasks=$others --relative=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        bash -c "$(declare -f serve_ray)
            serve_ray \$(mktemp --directory /tmp/ray-XXXXXX) --address=$address &
            cat
            kill \$!
            wait" <"$folder/lifeline" &
    workers=$!
    exec 9>"$folder/lifeline"
    "$python" -m orchestrator.cluster.wait_for_nodes "$address" "$SLURM_NNODES" ||
        fail "Ray did not start on all nodes."
fi

command=("${start[@]}")
if ((${SLURM_RESTART_COUNT:-0})) && "$python" -m orchestrator show "$run" >/dev/null 2>&1; then
    command=("${resume[@]}")
fi
exit_if_ending
"${command[@]}" --address "$address" 9>&- &
driver=$!

is_interrupted=yes
while [[ $is_interrupted ]]; do # a signal ends `wait` before the driver has ended
    is_interrupted=
    wait "$driver"
    result=$?
    ((result == 127)) || code=$result # 127: `wait` has returned the exit code before
done

# 143: the driver could not handle SIGTERM yet.
((code != 143)) || code=130
if [[ $ending == requeue && $code == 130 ]]; then
    echo "The time of job $SLURM_JOB_ID is over; it returns to the queue and continues the run." >&2
    end_services
    requeue || echo "Slurm does not requeue it. To continue: $(printf '%q ' "${resume[@]}")" >&2
fi
exit "$code"
