# Part of hack/external.sh and hack/soak.sh: ready provisioners on a running cluster of this machine, with the servers and
# Secrets that they need.
#
# `cluster` is its name, and `prefix` begins the names of what is made in it. `scratch` is a directory for the data of all
# volumes, `pool` the size of a pool. With several nodes, `own` is a directory that each has for itself. finish_shelf takes
# everything away.
shelf=() server=

# provides NAME AS [PARAMETER=VALUE]... installs a provisioner and its class under the name AS, and makes its image.
provides() {
	local parameter tag packages set=()
	shelf+=("$2")
	for parameter in "${@:3}"; do set+=("\"${parameter%%=*}\":\"${parameter#*=}\""); done
	sed "s/^  name: $1\$/  name: $2/" "provisioners/$1/provisioner.yaml" | kubectl apply -f - >&2
	kubectl patch --local -o yaml -f "provisioners/$1/class.yaml" --type merge \
		-p "{\"metadata\":{\"name\":\"$2\"},\"provisioner\":\"$2\",\"parameters\":{$(IFS=,; echo "${set[*]}")}}" | kubectl apply -f - >&2
	[ -e "provisioners/$1/Dockerfile" ] || return 0 # every cluster has its image
	tag=$(sed -n 's/.*image: *//p' "provisioners/$1/provisioner.yaml" | head -n 1)
	packages=$(sed -n 's/.*--no-install-recommends //p' "provisioners/$1/Dockerfile" | sed 's/[&\\].*//' | xargs | tr ' ' ,)
	tarn-cluster image build --name "$cluster" --tag "$tag" --packages "$packages" >&2
}

# secret NAME --from-literal=KEY=VALUE... makes the Secret $prefix-NAME in the namespace of the step pods.
secret() {
	kubectl -n tarn-volumes create secret generic "$prefix-$1" "${@:2}" --dry-run=client -o yaml | kubectl apply -f - >&2
}

# ready NAME installs a ready provisioner and its class, both named $prefix-NAME.
ready() {
	local host
	case $1 in
	bucket)
		go build -C hack/buckets -o "$scratch/" ./s3mem
		host=$(kubectl config view -o jsonpath='{.clusters[0].cluster.server}') host=${host#https://} host=${host%:*}
		ACCESS_KEY=$prefix SECRET_KEY=$prefix-key "$scratch/s3mem" "$host:29000" 127.0.0.1:0 &
		server=$!
		until (: <>"/dev/tcp/$host/29000") 2>/dev/null; do kill -0 "$server" && sleep 0.1; done
		secret bucket "--from-literal=accessKeyId=$prefix" "--from-literal=secretAccessKey=$prefix-key"
		provides bucket "$prefix-bucket" "endpoint=http://$host:29000" "secret=$prefix-bucket" deleteContents=true
		;;
	encrypted)
		secret encrypted "--from-literal=password=$prefix"
		provides xfs "$prefix-below" "folder=${own:-$scratch}/below"
		provides encrypted "$prefix-encrypted" "backingClass=$prefix-below" \
			"csi.storage.k8s.io/node-publish-secret-name=$prefix-encrypted" csi.storage.k8s.io/node-publish-secret-namespace=tarn-volumes
		;;
	shared) provides shared "$prefix-shared" "folder=$scratch/shared" ;;
	*) provides "$1" "$prefix-$1" "folder=${own:-$scratch}/$1" "poolSize=$pool" ;;
	esac
}

# finish_shelf removes what `ready` made, when its volumes are gone.
finish_shelf() {
	local name
	for name in "${shelf[@]}"; do kubectl delete --ignore-not-found storageclass "$name" && kubectl delete --ignore-not-found --timeout 3m pavprovisioner "$name"; done >&2
	kubectl -n tarn-volumes delete --ignore-not-found secret "$prefix-bucket" "$prefix-encrypted" >&2
	[ -z "$server" ] || kill "$server"
}
