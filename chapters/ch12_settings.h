// Chapter 12, its command line: every setting of a run, and the combinations that make no sense.
#ifndef CH12_SETTINGS_H
#define CH12_SETTINGS_H

#include "ch09_interval.h"

typedef struct settings {
    const char *method, *data, *optimizer, *csv, *epoch_csv, *save, *report, *trace;
    const char *checkpoint, *resume, *png, *network;
    int threads, epochs, batch, per_rank_batch, average_every, bucket, every;
    float lr, momentum, patience;
    uint64_t seed;
    bool quiet, float_sums, direct, hogwild, adam, profile, doctor, pin, forecast;
    dt_algorithm algorithm;
} settings;

// Two outputs of one name: the one would lie over the other.
static void refuse_one_file_for_two(dt_comm *comm, const settings *s) {
    const char *const option[] = { "--csv", "--epoch-csv", "--save", "--trace", "--checkpoint" };
    const char *const file[] = { s->csv, s->epoch_csv, s->save, s->trace, s->checkpoint };
    for (int i = 1; i < 5; ++i)
        for (int j = 0; j < i; ++j) {
            char sentence[80];
            if (!file[i] || !file[j] || strcmp(file[i], file[j]) != 0 ||
                strncmp(file[i], "/dev/", 5) == 0)
                continue;
            snprintf(sentence, sizeof sentence, "%s and %s: each needs a file of its own",
                     option[j], option[i]);
            usage_error(comm, "ch12", sentence);
        }
}

static void refuse_nonsense(dt_comm *comm, const settings *s) {
    if (!s->hogwild && strcmp(s->method, "sync") != 0 && strcmp(s->method, "psgd") != 0)
        usage_error(comm, "ch12", "--method: sync, psgd or hogwild is needed");
    if (!s->adam && strcmp(s->optimizer, "sgd") != 0)
        usage_error(comm, "ch12", "--optimizer: sgd or adam is needed");
    if (s->adam && s->momentum >= 0.0f)
        usage_error(comm, "ch12", "--momentum goes with --optimizer sgd");
    if (s->threads && dt_comm_size(comm) > 1)
        usage_error(comm, "ch12", "--threads runs in one process: start it without mpiexec");
    if (s->batch && s->per_rank_batch)
        usage_error(comm, "ch12", "--batch and --per-rank-batch: say one of them");
    if (s->average_every && strcmp(s->method, "psgd") != 0 && !s->forecast)
        usage_error(comm, "ch12", "--average-every goes with --method psgd");
    if (s->threads > 1 && s->algorithm == DT_MPI)
        usage_error(comm, "ch12",
                    "--algorithm mpi is for processes: start it with mpiexec, without --threads");
    if ((s->png || s->network) && !s->forecast)
        usage_error(comm, "ch12", "--png and --network go with --forecast");
    if (s->forecast && (s->hogwild || s->save || s->checkpoint || s->resume || s->trace ||
                        s->epoch_csv))
        usage_error(comm, "ch12",
                    "--forecast trains for seconds only: it has no Hogwild, no --save, "
                    "--checkpoint, --resume, --trace and no --epoch-csv");
    if (s->pin && !s->hogwild) usage_error(comm, "ch12", "--pin goes with --method hogwild");
    if (s->every && !s->checkpoint)
        usage_error(comm, "ch12", "--every says how often --checkpoint is written, and needs it");
    if (s->hogwild && (s->checkpoint || s->resume))
        usage_error(comm, "ch12",
                    "Hogwild's workers never meet: it has no --checkpoint, no --resume");
    if (s->hogwild && (s->profile || s->trace))
        usage_error(comm, "ch12",
                    "Hogwild's workers never wait: --profile and --trace say nothing to it");
    if (s->hogwild && (s->float_sums || s->bucket || s->per_rank_batch || s->algorithm != DT_AUTO))
        usage_error(comm, "ch12",
                    "Hogwild has no sums over ranks: --float-sums, --bucket, --per-rank-batch and "
                    "--algorithm say nothing to it");
}

static void read_settings(int argc, char **argv, dt_comm *comm, settings *s) {
    *s = (settings){ .method = "sync", .data = "auto", .seed = 1234, .momentum = -1.0f };
    const option_desc options[] = {
        { "method", 's', &s->method, "sync|psgd|hogwild   default sync" },
        { "threads", UP_TO(1024), &s->threads,
          "N   Hogwild's workers; for sync and psgd, threads as "
          "ranks instead of MPI; default 1" },
        DATA_OPTION(&s->data),
        { "epochs", 'i', &s->epochs, "E   default 10, Hogwild 1" },
        { "batch", UP_TO(1 << 20), &s->batch,
          "B   samples a step, over all ranks; default 128. "
          "Hogwild: of each worker, default 32" },
        { "per-rank-batch", UP_TO(1 << 20), &s->per_rank_batch,
          "B   instead: samples a step of each rank" },
        { "lr", 'f', &s->lr, "X   learning rate, default 0.01 for sgd, 0.001 for adam" },
        { "momentum", 'z', &s->momentum, "M   of sgd, default 0.5" },
        { "optimizer", 's', &s->optimizer, "sgd|adam   default sgd, Hogwild adam" },
        SEED_OPTION(&s->seed),
        ALGORITHM_OPTION(&s->algorithm),
        { "bucket", 'i', &s->bucket,
          "KB   of gradient that starts on its way while the rest is "
          "computed; default 1024" },
        { "float-sums", 'b', &s->float_sums,
          "    add gradients as floats: not the same bits for every number of ranks" },
        { "direct", 'b', &s->direct,
          "    convolutions by their definition, not by Winograd's algorithm (chapter 4)" },
        { "average-every", 'h', &s->average_every,
          AVERAGE_EVERY_HELP "; with psgd, default once at the end" },
        { "csv", 's', &s->csv, "FILE   append one row for this run" },
        { "epoch-csv", 's', &s->epoch_csv, "FILE   append one row for each epoch" },
        { "save", 's', &s->save, "FILE   write the parameters as safetensors" },
        CHECKPOINT_OPTION(&s->checkpoint),
        { "every", 'i', &s->every, "N   steps from one checkpoint to the next; default an epoch" },
        RESUME_OPTION(&s->resume),
        { "report", 's', &s->report,
          "FILE   no training: print tables and draw charts beside FILE, a --csv file" },
        { "forecast", 'b', &s->forecast,
          "    no run: measure a step and messages, forecast the speed of up to 1024 ranks; on "
          "several ranks, hold it against a few seconds of training" },
        { "png", 's', &s->png, "STEM   where --forecast's pictures go, default out/ch12_forecast" },
        { "network", 's', &s->network, "NAME   what --forecast calls that which joins its ranks" },
        { "pin", 'b', &s->pin, "    hogwild: worker i stays on core i" },
        { "profile", 'b', &s->profile,
          "    after each epoch, a table of what each rank's time went "
          "to: computing, waiting, adding" },
        { "trace", 's', &s->trace,
          "FILE   write what each rank did when as Chrome trace JSON, for ui.perfetto.dev" },
        { "patience", 'f', &s->patience,
          "S   seconds until a rank that does nothing ends the job; "
          "default 5, or 100 steps if longer" },
        { "doctor", 'b', &s->doctor, "    no training: only look at how the job was started" },
        { "quiet", 'b', &s->quiet, "    print nothing but errors" },
    };
    read_options(argc, argv, comm, "Trains the MNIST net on MPI ranks or on threads.", options,
                 sizeof options / sizeof *options);
    s->hogwild = strcmp(s->method, "hogwild") == 0;
    if (!s->optimizer) s->optimizer = s->hogwild ? "adam" : "sgd";
    s->adam = strcmp(s->optimizer, "adam") == 0;
    refuse_nonsense(comm, s);
    refuse_one_file_for_two(comm, s);
    if (!s->threads) s->threads = 1;
    if (!s->epochs) s->epochs = s->hogwild ? 1 : 10;
    if (s->per_rank_batch)
        s->batch = s->per_rank_batch * (s->threads > 1 ? s->threads : dt_comm_size(comm));
    if (!s->batch) s->batch = s->hogwild ? 32 : 128;
    if (!(s->lr > 0.0f)) s->lr = s->adam ? 1e-3f : 0.01f;
    if (s->momentum < 0.0f) s->momentum = 0.5f;
}

#endif
