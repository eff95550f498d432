// Command s3mem serves S3 from memory, for the end-to-end tests that `make test` runs. Versitygw,
// which the other tests use, takes two minutes of processor to build.
//
//	ACCESS_KEY=... SECRET_KEY=... s3mem ADDRESS OPEN
//
// Requests to ADDRESS must be signed with the key. Those to OPEN need no key: the test looks there
// at what its volumes have uploaded.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

// backend lists all objects where a request has an empty delimiter, as S3 does. Gofakes3 lists none.
type backend struct{ *s3mem.Backend }

func (b backend) ListBucket(ctx context.Context, name string, prefix *gofakes3.Prefix, page gofakes3.ListBucketPage) (*gofakes3.ObjectList, error) {
	if prefix != nil && prefix.Delimiter == "" {
		prefix.HasDelimiter = false
	}
	return b.Backend.ListBucket(ctx, name, prefix, page)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: s3mem ADDRESS OPEN")
	}
	buckets := backend{s3mem.New()}
	signed := gofakes3.New(buckets, gofakes3.WithV4Auth(map[string]string{os.Getenv("ACCESS_KEY"): os.Getenv("SECRET_KEY")}))
	go func() { log.Fatal(http.ListenAndServe(os.Args[1], signed.Server())) }()
	log.Fatal(http.ListenAndServe(os.Args[2], gofakes3.New(buckets).Server()))
}
