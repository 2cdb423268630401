r"""Read files that arrive in a folder: visits by page, and a file that is added is counted once.

    mkdir -p artifacts/visits/in
    printf 'user,page\nann,/home\nbob,/home\nann,/help\n' > artifacts/visits/in/1.csv
    headgate run examples/visits.py:flow --once
    headgate inspect artifacts/visits/checkpoint --operator pages --key /home

Write another file and run it again, or leave out `--once` and add files while it runs; large ones
are written elsewhere and then moved here, so that they appear whole. Tasks read files as Arrow,
without the JVM, and only the column `page`: nobody reads the other.
"""

import headgate as hg

flow = hg.Flow("visits")
(
    flow.source(
        hg.Files(
            "artifacts/visits/in",
            format="csv",
            schema="user string, page string",
            header=True,
            max_files=100,
        ),
        name="visits",
    )
    .key_by("page")
    .process(hg.Count(), name="pages")
    .to_console(rows=5)
)


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("visits"), slots=2, checkpoint="artifacts/visits/checkpoint")
    query.awaitTermination(30)
    query.stop()
