"""What run.sh needs of a bucket and `coa` has no command for.

    bucket.py kill-at PREFIX COMMAND...    runs the command and kills it as soon as an object lies below s3://PREFIX
    bucket.py remove BUCKET                removes a bucket and all in it
"""

import subprocess
import sys

import s3fs

s3 = s3fs.S3FileSystem(use_listings_cache=False)

match sys.argv[1:]:
    case ["kill-at", prefix, *command]:
        victim = subprocess.Popen(command)
        while not s3.find(prefix):
            if victim.poll() is not None:
                sys.exit(f"`{command[0]}` ended with {victim.returncode} before anything lay below {prefix}")
        victim.kill()
        if victim.wait() >= 0:
            sys.exit(f"`{command[0]}` was done before it could be killed")
    case ["remove", bucket]:
        if s3.exists(bucket):
            s3.rm(bucket, recursive=True)
    case _:
        sys.exit(__doc__)
