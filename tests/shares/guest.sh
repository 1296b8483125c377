#!/bin/bash
# What the guest runs as its first process: brings up the share $KIND, mounts it at /mnt/a and /mnt/b, and runs the command in
# $BOX, a folder of the host, the only one that can be written from here. It tells the host by files in it: `log` is what the
# command writes, `mounted` appears when both mounts are there, `status` is the command's exit status.
#
# Everything else of the host is seen as it is, and read-only; where something must be written lies a memory file system. The
# second mount is made as another machine would: in a network of its own, under a name of its own. Two mounts made side by side
# would share an NFS client, and the server would take them for one.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home TMPDIR=/run/tmp LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm
for place in /run /mnt /dev/shm; do mount -t tmpfs tmpfs $place; done
hostname here
mkdir -p /run/home /run/tmp /run/box /run/share /run/contested /mnt/a /mnt/b
mount -t hostfs -o "$BOX" none /run/box
exec >/run/box/log 2>&1

SERVER=192.0.2.1 # addresses for documentation (RFC 5737), in this guest alone

fail() {
    echo "$*" >/run/box/failed
    off
}

off() {
    echo o >/proc/sysrq-trigger
    sleep 60
}

load() {
    modprobe -d /run/modules -a "$@" || fail "the kernel module is missing: $*"
}

# The kernel asks for modules itself, too, and would look for them in a folder that the host need not have.
modules() {
    mkdir -p /run/modules/lib/modules
    ln -s "$MODULES" /run/modules/lib/modules/
    printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/modprobe
    chmod +x /run/modprobe
    echo /run/modprobe >/proc/sys/kernel/modprobe
}

# Another machine: a process that holds its network and its name.
elsewhere() {
    load veth
    unshare --net --uts sh -c 'hostname elsewhere; touch /run/elsewhere; exec sleep infinity' &
    other=$!
    until [ -e /run/elsewhere ]; do sleep 0.02; done
    ip link set lo up
    ip link add here type veth peer name there
    ip link set there netns $other
    ip address add $SERVER/24 dev here
    ip link set here up
    nsenter -t $other -n ip address add 192.0.2.2/24 dev there
    nsenter -t $other -n ip link set there up
}

# Mounts it here as $1/a, and as $1/b from there.
mount_both() {
    local place=$1
    shift
    "$@" $place/a && nsenter -t $other --net --uts "$@" $place/b || fail "cannot be mounted: $*"
}

smb() {
    load cifs
    for place in lib cache log; do mount -t tmpfs tmpfs /var/$place/samba; done
    mkdir /var/lib/samba/private
    cat >/run/smb.conf <<'CONF'
[global]
    server min protocol = SMB3
    load printers = no
    disable netbios = yes
[swarm]
    path = /run/share
    read only = no
[contested]
    path = /run/contested
    read only = no
    oplocks = no
    level2 oplocks = no
CONF
    printf 'secret\nsecret\n' | smbpasswd -c /run/smb.conf -s -a root >/dev/null || fail 'smbpasswd failed'
    smbd --daemon --configfile=/run/smb.conf || fail 'smbd does not start'
    for _ in {1..300}; do
        (exec 3<>/dev/tcp/$SERVER/445) 2>/dev/null && break
        sleep 0.1
    done
    local cifs=(mount.cifs -o vers=3.1.1,username=root,password=secret,nosharesock,closetimeo=0)
    mount_both /mnt "${cifs[@]}" //$SERVER/swarm
    # Where eight processes want the same file at once, this client often takes 5 to 10 s to give back an oplock, for which the
    # server lets all of them wait. A hundred times that: so there is a share without oplocks, too, for whoever has no such time.
    mkdir -p /mnt/contested/a /mnt/contested/b
    mount_both /mnt/contested "${cifs[@]}" //$SERVER/contested
}

nfs() {
    load nfsd nfsv3 nfsv4
    mount -t tmpfs tmpfs /run/share
    mount -t tmpfs tmpfs /var/lib/nfs
    mkdir -p /var/lib/nfs/{sm,sm.bak,v4recovery,rpc_pipefs}
    touch /var/lib/nfs/{etab,rmtab}
    mount -t nfsd nfsd /proc/fs/nfsd
    rpcbind -w || fail 'rpcbind does not start'
    exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=0 '*:/run/share' || fail 'exportfs failed'
    rpc.mountd && rpc.nfsd 8 || fail 'nfsd does not start'
    echo 1 >/proc/fs/nfsd/v4_end_grace
}

modules
elsewhere
case $KIND in
    smb) smb ;;
    nfs4) nfs; mount_both /mnt mount.nfs4 -o vers=4.2,nosharecache $SERVER:/ ;;
    nfs3) nfs; mount_both /mnt mount.nfs -o vers=3,nolock,nosharecache $SERVER:/run/share ;;
esac
grep ' /mnt/.*[ab] ' /proc/mounts >/run/box/mounted
bash /run/box/command </dev/null
echo $? >/run/box/status
off
