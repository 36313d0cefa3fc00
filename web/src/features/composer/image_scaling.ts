/** Images that are too large for a provider are scaled down before the upload. */
const KIB = 1024;
const LIMITS: Record<string, number> = { anthropic: 5 * KIB * KIB, bedrock: 5 * KIB * KIB };
const MOST_SIDE = 8192;
const MOST_PIXELS = 40_000_000;
const STEPS = 8;

/** Return the maximum size of an image in bytes for a type of provider, minus room for its encoding. */
export function limitFor(providerType: string | null): number {
  return (LIMITS[providerType ?? ""] ?? 10 * KIB * KIB) - 16 * KIB;
}

/** Return the sizes to try, each 0.8 times the previous one. */
export function sizes(width: number, height: number): { width: number; height: number }[] {
  const fit = Math.min(1, MOST_SIDE / Math.max(width, height), Math.sqrt(MOST_PIXELS / (width * height)));
  return Array.from({ length: STEPS }, (_, step) => {
    const scale = fit * 0.8 ** step;
    return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
  });
}

/** Return the image scaled down to the limit; null if that is not possible. GIFs are not changed: they may be animated. */
export async function shrink(file: File, limit: number): Promise<Blob | null> {
  if (!/^image\/(png|jpeg|webp)$/.test(file.type)) return file;
  const picture = await createImageBitmap(file).catch(() => null);
  if (!picture) return file;
  const isFine =
    file.size <= limit &&
    Math.max(picture.width, picture.height) <= MOST_SIDE &&
    picture.width * picture.height <= MOST_PIXELS;
  if (isFine) {
    picture.close();
    return file;
  }
  try {
    for (const { width, height } of sizes(picture.width, picture.height)) {
      const canvas = new OffscreenCanvas(width, height);
      canvas.getContext("2d")?.drawImage(picture, 0, 0, width, height);
      for (const quality of [0.85, 0.7]) {
        const blob = await canvas.convertToBlob({ type: "image/webp", quality });
        if (blob.size <= limit) return blob;
      }
    }
    return null;
  } finally {
    picture.close();
  }
}
