# Tarn's image for those who build with Docker. `make image` makes one without, which is the one that is tested; a test of
# hack/image compares what both say of flags, user, labels and program.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X tarn.dev/tarn/internal/cli.Version=$VERSION" -o /tarn ./cmd/tarn

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title=tarn \
      org.opencontainers.image.description="Persistent volumes for Kubernetes" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /tarn /tarn
# Anybody but root; the node agent's pod says otherwise.
USER 65532:65532
ENTRYPOINT ["/tarn"]
