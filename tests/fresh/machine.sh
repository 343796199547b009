#!/bin/sh
# The first process of a machine, started in namespaces of its own for mounts and processes. It
# makes BASE with FOLDER/upper over it the root file system, with PIP as the cache of pip below
# HOME, and runs the command as user UID.
# usage: machine.sh BASE FOLDER PIP HOME UID COMMAND...
set -eu
base=$1 folder=$2 pip=$3 home=$4 uid=$5
root=$folder/root
shift 5

mount -t overlay overlay -o "lowerdir=$base,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,mode=620,gid=5,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount --bind "$pip" "$root$home/.cache/pip"

cd "$root"
pivot_root . mnt
umount --lazy /mnt
# No exec: the first process has to wait for those whose parents have ended, as an init does
status=0
setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@" || status=$?
exit "$status"
